package host

import (
	"fmt"
	"slices"
	"strings"
)

// tierVariable is the variable that forces the tier of all engines; with an engine's name appended,
// of that engine.
const tierVariable = "EMULATORS"

// ForcedTier returns the tier that the environment forces for an engine, which must be one of
// tiers, and the variable that forces it, or "" if none does. The engine's own variable takes
// precedence.
func (m *Machine) ForcedTier(engine string, tiers ...string) (tier, variable string, err error) {
	for _, variable := range []string{VariableOf(engine, ""), tierVariable} {
		tier := m.Getenv(variable)
		if tier != "" && !slices.Contains(tiers, tier) {
			last := len(tiers) - 1
			return "", "", fmt.Errorf("%s=%q is not a tier of %s; it can be %s or %s, or unset",
				variable, tier, engine, strings.Join(tiers[:last], ", "), tiers[last])
		}
		if tier != "" {
			return tier, variable, nil
		}
	}
	return "", "", nil
}

// VariableOf returns the name of an engine's variable: VariableOf("postgres", "URL") is
// EMULATORS_POSTGRES_URL.
func VariableOf(engine, what string) string {
	name := tierVariable + "_" + strings.ToUpper(engine)
	if what != "" {
		name += "_" + what
	}
	return name
}
