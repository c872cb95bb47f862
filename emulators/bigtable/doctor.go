package bigtable

import (
	"context"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// Doctor reports which tiers of Bigtable are available, in the order in which they are tried. It
// starts no program.
func Doctor(ctx context.Context) []emulators.Finding { return doctor(ctx, thisMachine()) }

func doctor(ctx context.Context, m *host.Machine) []emulators.Finding {
	return []emulators.Finding{
		serviceFinding(ctx, m),
		{Engine: engineName, Tier: emulators.TierEmulator, Found: true, Version: "bttest " + moduleVersion, Where: "part of this program"},
		localFinding(ctx, m),
		m.ContainerFinding(engineName),
	}
}

func serviceFinding(ctx context.Context, m *host.Machine) emulators.Finding {
	f := emulators.Finding{Engine: engineName, Tier: emulators.TierService, Install: "set " + serviceVariable + " to host:port"}
	address := m.Getenv(serviceVariable)
	if address == "" {
		f.Problem = serviceVariable + " is not set"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, host.DoctorBound)
	defer cancel()
	s, err := At(ctx, address)
	if err == nil {
		f.Version, f.Where = s.Engine().Version, address
		err = s.Close()
	}
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Found, f.Install = true, ""
	return f
}

func localFinding(ctx context.Context, m *host.Machine) emulators.Finding {
	f := emulators.Finding{Engine: engineName, Tier: emulators.TierLocal, Install: installAdvice}
	program, err := findProgram(ctx, m)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Where = program
	if f.Version, err = cbtemulatorVersion(program); err != nil {
		f.Problem = program + ": " + err.Error()
		return f
	}
	f.Found, f.Install = true, ""
	return f
}
