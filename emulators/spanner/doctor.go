package spanner

import (
	"context"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// Doctor reports which tiers of Spanner are available, in the order in which they are tried. It
// starts the emulator's program, and probes what runs for the need of the session shim, because no
// version number shows that.
func Doctor(ctx context.Context) []emulators.Finding { return doctor(ctx, thisMachine()) }

func doctor(ctx context.Context, m *host.Machine) []emulators.Finding {
	return []emulators.Finding{
		serviceFinding(ctx, m),
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
	return complete(f, s, err, address)
}

func localFinding(ctx context.Context, m *host.Machine) emulators.Finding {
	f := emulators.Finding{Engine: engineName, Tier: emulators.TierLocal, Install: installAdvice}
	program, err := findProgram(ctx, m)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, host.DoctorBound)
	defer cancel()
	s := newServer(Options{})
	s.engine = emulators.Engine{Name: engineName, Tier: emulators.TierLocal}
	if err = s.startLocal(ctx, program); err != nil {
		f.Where = program
		_ = s.Close() // there is a problem already
	}
	return complete(f, s, err, program)
}

// complete completes a finding with an emulator that was started or reached, or with the error.
func complete(f emulators.Finding, s *Server, err error, where string) emulators.Finding {
	if err == nil {
		f.Version, f.Where = s.Engine().Version+", no session shim needed,", where
		if s.Shimmed() {
			f.Version = s.Engine().Version + " behind a session shim"
		}
		err = s.Close()
	}
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	f.Found, f.Install = true, ""
	return f
}
