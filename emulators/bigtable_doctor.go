package emulators

import (
	"context"
)

// doctorBigtable looks for a running emulator and for the emulator's program.
func doctorBigtable(ctx context.Context, m *machine) []Finding {
	return []Finding{
		m.bigtableServiceFinding(ctx),
		{Engine: engineBigtable, Tier: TierEmulator, Found: true, Version: "bttest " + bigtableModule, Where: "part of this program"},
		m.bigtableLocalFinding(ctx),
		containerFinding(engineBigtable),
	}
}

func (m *machine) bigtableServiceFinding(ctx context.Context) Finding {
	f := Finding{Engine: engineBigtable, Tier: TierService, Install: "set " + bigtableServiceVariable + " to host:port"}
	address := m.getenv(bigtableServiceVariable)
	if address == "" {
		f.Problem = bigtableServiceVariable + " is not set"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, doctorBound)
	defer cancel()
	s, err := BigtableAt(ctx, address)
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

func (m *machine) bigtableLocalFinding(ctx context.Context) Finding {
	f := Finding{Engine: engineBigtable, Tier: TierLocal, Install: installBigtable}
	program, err := m.findBigtable(ctx)
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
