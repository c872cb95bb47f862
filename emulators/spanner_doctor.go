package emulators

import (
	"context"
)

// doctorSpanner looks for a running emulator and for the emulator's program. It probes each for the
// need of the session shim, because no version number shows that.
func doctorSpanner(ctx context.Context, m *machine) []Finding {
	return []Finding{
		m.spannerServiceFinding(ctx),
		m.spannerLocalFinding(ctx),
		containerFinding(engineSpanner),
	}
}

func (m *machine) spannerServiceFinding(ctx context.Context) Finding {
	f := Finding{Engine: engineSpanner, Tier: TierService, Install: "set " + spannerServiceVariable + " to host:port"}
	address := m.getenv(spannerServiceVariable)
	if address == "" {
		f.Problem = spannerServiceVariable + " is not set"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	s, err := SpannerAt(ctx, address)
	return f.ofSpanner(s, err, address)
}

func (m *machine) spannerLocalFinding(ctx context.Context) Finding {
	f := Finding{Engine: engineSpanner, Tier: TierLocal, Install: installSpanner}
	program, err := m.findSpanner(ctx)
	if err != nil {
		f.Problem = err.Error()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	s := newSpannerServer(SpannerOptions{})
	s.engine = Engine{Name: engineSpanner, Tier: TierLocal}
	if err = s.startLocal(ctx, program); err != nil {
		f.Where = program
		_ = s.Close() // there is a problem already
	}
	return f.ofSpanner(s, err, program)
}

// ofSpanner completes the finding with an emulator that was started or reached, or with the error.
func (f Finding) ofSpanner(s *SpannerServer, err error, where string) Finding {
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
