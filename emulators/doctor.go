package emulators

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Finding is Doctor's result for one tier of one engine.
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

// doctors are the functions of the engines. Each returns its findings in the order in which the
// tiers are tried.
var doctors = []func(ctx context.Context, m *machine) []Finding{
	doctorPostgres,
	doctorBigtable,
	doctorSpanner,
	doctorDocker,
}

// doctorBound (30 s) bounds one reply of a program or a server on a busy machine: gcloud takes a
// second on an idle one.
const doctorBound = 30 * time.Second

// Doctor reports which engines can be started on this machine and what is missing. It starts no
// engine except Spanner's emulator, which is quick and the only way to learn whether it needs the
// shim.
func Doctor(ctx context.Context) []Finding { return thisMachine().doctor(ctx) }

func (m *machine) doctor(ctx context.Context) []Finding {
	var findings []Finding
	for _, look := range doctors {
		findings = append(findings, look(ctx, m)...)
	}
	return findings
}

// containerFinding returns the finding for an engine's container.
func containerFinding(engine string) Finding {
	f := Finding{Engine: engine, Tier: TierContainer, Found: containerStarter(engine) != nil}
	if !f.Found {
		f.Problem = "this program cannot start containers"
		f.Install = useContainers(engine)
	}
	return f
}
