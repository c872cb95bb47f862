package emulators

import (
	"fmt"
	"strings"
)

// tierVariable is the variable that forces the tier of all engines; with the
// engine's name behind it, of one.
const tierVariable = "EMULATORS"

// forcedTier tells which tier the environment forces for an engine and by which
// variable, or "" when the choice is free. The engine's own variable wins.
func (m *machine) forcedTier(engine string) (tier, variable string, err error) {
	for _, variable := range []string{variableOf(engine, ""), tierVariable} {
		switch tier := m.getenv(variable); tier {
		case "":
		case TierLocal, TierContainer, TierService:
			return tier, variable, nil
		default:
			return "", "", fmt.Errorf("%s=%q is not a tier; it can be %s, %s or %s, or unset",
				variable, tier, TierLocal, TierContainer, TierService)
		}
	}
	return "", "", nil
}

// variableOf is the name of an engine's variable: variableOf("postgres", "URL")
// is EMULATORS_POSTGRES_URL.
func variableOf(engine, what string) string {
	name := tierVariable + "_" + strings.ToUpper(engine)
	if what != "" {
		name += "_" + what
	}
	return name
}
