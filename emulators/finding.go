package emulators

import (
	"fmt"
	"strings"
)

// Finding is what package emulators/doctor finds out about one tier of one engine.
type Finding struct {
	Engine  string // "postgres"; "docker" for what containers need
	Tier    string // TierLocal, TierEmulator, TierService or TierContainer
	Found   bool
	Version string // if the program or server reports one
	Where   string // a directory, an address without its password, an image
	// Problem is why the tier is not available, and Install how to make it available.
	Problem string
	Install string
}

// String returns one line for people.
func (f Finding) String() string {
	name := fmt.Sprintf("%s (%s)", f.Engine, f.Tier)
	if f.Found {
		return strings.Join(strings.Fields(fmt.Sprintf("%s: found %s %s", name, f.Version, f.Where)), " ")
	}
	text := fmt.Sprintf("%s: not found: %s", name, f.Problem)
	if f.Install != "" {
		text += "; to have it: " + f.Install
	}
	return text
}
