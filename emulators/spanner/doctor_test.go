package spanner

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestDoctorFindsWhatStartStarts(t *testing.T) {
	t.Parallel()
	_, err := findProgram(t.Context(), thisMachine())
	emulators.Require(t, err)
	s := startServer(t, &Options{Tier: emulators.TierLocal})
	f := hosttest.Finding(t, Doctor(t.Context()), engineName, emulators.TierLocal)
	if !f.Found || !strings.HasPrefix(f.Version, s.Engine().Version) || f.Where != s.program {
		t.Errorf("found %v, want version %s at %s", f, s.Engine().Version, s.program)
	}
	if shim := strings.Contains(f.Version, "behind a session shim"); shim != s.Shimmed() {
		t.Errorf("says %q, but that there is a shim is %v", f, s.Shimmed())
	}
}

func TestDoctorOnABareMachine(t *testing.T) {
	t.Parallel()
	hosttest.CheckMissing(t, doctor(t.Context(), hosttest.Machine(nil)), []emulators.Finding{
		{Engine: engineName, Tier: emulators.TierService, Problem: "SPANNER_EMULATOR_HOST is not set", Install: "set SPANNER_EMULATOR_HOST"},
		{Engine: engineName, Tier: emulators.TierLocal, Problem: "no emulator_main", Install: "gcloud components install cloud-spanner-emulator"},
		{Engine: engineName, Tier: emulators.TierContainer, Problem: "cannot start containers", Install: "RegisterContainer"},
	})
}
