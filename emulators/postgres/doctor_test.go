package postgres

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestDoctorFindsWhatStartStarts(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	f := hosttest.Finding(t, Doctor(t.Context()), engineName, emulators.TierLocal)
	if !f.Found || f.Version != s.Engine().Version || f.Where != s.local.bin {
		t.Errorf("found %+v, want version %s in %s", f, s.Engine().Version, s.local.bin)
	}
	if got, want := f.String(), "postgres (local): found "+f.Version+" "+f.Where; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	m := hosttest.Machine(map[string]string{"EMULATORS_POSTGRES_URL": strings.Replace(s.URL(), "postgres@", "postgres:secret@", 1)})
	f = hosttest.Finding(t, doctor(t.Context(), m), engineName, emulators.TierService)
	if !f.Found || f.Version != s.Engine().Version || strings.Contains(f.String(), "secret") {
		t.Errorf("found %v, want version %s and no password", f, s.Engine().Version)
	}
}

func TestDoctorOnABareMachine(t *testing.T) {
	t.Parallel()
	hosttest.CheckMissing(t, doctor(t.Context(), hosttest.Machine(nil)), []emulators.Finding{
		{Engine: engineName, Tier: emulators.TierService, Problem: "EMULATORS_POSTGRES_URL is not set", Install: "set EMULATORS_POSTGRES_URL"},
		{Engine: engineName, Tier: emulators.TierLocal, Problem: "no directory with initdb and postgres", Install: "apt-get install postgresql"},
		{Engine: engineName, Tier: emulators.TierContainer, Problem: "cannot start containers", Install: "RegisterContainer"},
	})
}
