package bigtable

import (
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestDoctorFindsWhatStartStarts(t *testing.T) {
	t.Parallel()
	s := startServer(t, emulators.TierEmulator)
	if got, want := hosttest.Finding(t, Doctor(t.Context()), engineName, emulators.TierEmulator).String(), "bigtable (emulator): found "+s.Engine().Version+" part of this program"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	m := hosttest.Machine(map[string]string{"BIGTABLE_EMULATOR_HOST": s.Address()})
	if f := hosttest.Finding(t, doctor(t.Context(), m), engineName, emulators.TierService); !f.Found || f.Where != s.Address() {
		t.Errorf("found %v, want one at %s", f, s.Address())
	}
	local := startServer(t, emulators.TierLocal)
	if f := hosttest.Finding(t, Doctor(t.Context()), engineName, emulators.TierLocal); !f.Found || f.Version != local.Engine().Version {
		t.Errorf("found %v, want version %s", f, local.Engine().Version)
	}
}

func TestDoctorOnABareMachine(t *testing.T) {
	t.Parallel()
	hosttest.CheckMissing(t, doctor(t.Context(), hosttest.Machine(nil)), []emulators.Finding{
		{Engine: engineName, Tier: emulators.TierService, Problem: "BIGTABLE_EMULATOR_HOST is not set", Install: "set BIGTABLE_EMULATOR_HOST"},
		{Engine: engineName, Tier: emulators.TierLocal, Problem: "no cbtemulator", Install: "gcloud components install bigtable"},
		{Engine: engineName, Tier: emulators.TierContainer, Problem: "cannot start containers", Install: "RegisterContainer"},
	})
}
