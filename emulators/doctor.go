package emulators

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Finding is what Doctor found out about one way to have one engine.
type Finding struct {
	Engine  string // "postgres"; "docker" for what containers need
	Tier    string // TierLocal, TierEmulator, TierService or TierContainer
	Found   bool
	Version string // of what was found, if it tells
	Where   string // a directory, an address without its password, an image
	// Problem is why it was not found, and Install what to do about it.
	Problem string
	Install string
}

// String is one line for people.
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

// doctors are the engines' own; each gives its findings in the order in which its
// tiers are tried.
var doctors = []func(ctx context.Context, m *machine) []Finding{
	doctorPostgres,
	doctorBigtable,
	doctorSpanner,
	doctorDocker,
}

// doctorBound is for one answer of a program or a server, on a machine that is busy: gcloud takes a second on an
// idle one.
const doctorBound = 30 * time.Second

// Doctor looks at what can be started on this machine and what is missing. It
// starts no engine, but for Spanner's emulator: that takes a moment, and is the only
// way to learn what it needs.
func Doctor(ctx context.Context) []Finding { return thisMachine().doctor(ctx) }

func (m *machine) doctor(ctx context.Context) []Finding {
	var findings []Finding
	for _, look := range doctors {
		findings = append(findings, look(ctx, m)...)
	}
	return findings
}

// containerFinding is the finding about an engine's container.
func containerFinding(engine string) Finding {
	f := Finding{Engine: engine, Tier: TierContainer, Found: containerStarter(engine) != nil}
	if !f.Found {
		f.Problem = "this program cannot start containers"
		f.Install = useContainers(engine)
	}
	return f
}
