package emulators

import (
	"strings"
	"testing"
)

// finding picks one of the findings.
func finding(t *testing.T, findings []Finding, engine, tier string) Finding {
	t.Helper()
	for _, f := range findings {
		if f.Engine == engine && f.Tier == tier {
			return f
		}
	}
	t.Fatalf("no finding on %s (%s) among %v", engine, tier, findings)
	return Finding{}
}

func TestDoctorFindsWhatPostgresStarts(t *testing.T) {
	t.Parallel()
	s := startPostgres(t, nil)
	f := finding(t, Doctor(t.Context()), enginePostgres, TierLocal)
	if !f.Found || f.Version != s.Engine().Version || f.Where != s.local.bin {
		t.Errorf("found %+v, want version %s in %s", f, s.Engine().Version, s.local.bin)
	}
	if got, want := f.String(), "postgres (local): found "+f.Version+" "+f.Where; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	m := aMachine(map[string]string{"EMULATORS_POSTGRES_URL": strings.Replace(s.URL(), "postgres@", "postgres:secret@", 1)})
	f = finding(t, m.doctor(t.Context()), enginePostgres, TierService)
	if !f.Found || f.Version != s.Engine().Version || strings.Contains(f.String(), "secret") {
		t.Errorf("found %v, want version %s and no password", f, s.Engine().Version)
	}
}

func TestDoctorFindsWhatBigtableStarts(t *testing.T) {
	t.Parallel()
	s := startBigtable(t, TierEmulator)
	if got, want := finding(t, Doctor(t.Context()), engineBigtable, TierEmulator).String(), "bigtable (emulator): found "+s.Engine().Version+" part of this program"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	m := aMachine(map[string]string{"BIGTABLE_EMULATOR_HOST": s.Address()})
	if f := finding(t, m.doctor(t.Context()), engineBigtable, TierService); !f.Found || f.Where != s.Address() {
		t.Errorf("found %v, want one at %s", f, s.Address())
	}
	local := startBigtable(t, TierLocal)
	if f := finding(t, Doctor(t.Context()), engineBigtable, TierLocal); !f.Found || f.Version != local.Engine().Version {
		t.Errorf("found %v, want version %s", f, local.Engine().Version)
	}
}

func TestDoctorFindsWhatSpannerStarts(t *testing.T) {
	t.Parallel()
	_, err := thisMachine().findSpanner(t.Context())
	Require(t, err)
	s := startSpanner(t, &SpannerOptions{Tier: TierLocal})
	f := finding(t, Doctor(t.Context()), engineSpanner, TierLocal)
	if !f.Found || !strings.HasPrefix(f.Version, s.Engine().Version) || f.Where != s.program {
		t.Errorf("found %v, want version %s at %s", f, s.Engine().Version, s.program)
	}
	if shim := strings.Contains(f.Version, "behind a session shim"); shim != s.Shimmed() {
		t.Errorf("says %q, but that there is a shim is %v", f, s.Shimmed())
	}
}

func TestDoctorOnABareMachine(t *testing.T) {
	t.Parallel()
	findings := aMachine(nil).doctor(t.Context())
	for _, c := range []struct{ engine, tier, problem, install string }{
		{enginePostgres, TierService, "EMULATORS_POSTGRES_URL is not set", "set EMULATORS_POSTGRES_URL"},
		{enginePostgres, TierLocal, "no directory with initdb and postgres", "apt-get install postgresql"},
		{enginePostgres, TierContainer, "cannot start containers", "RegisterContainer"},
		{engineBigtable, TierService, "BIGTABLE_EMULATOR_HOST is not set", "set BIGTABLE_EMULATOR_HOST"},
		{engineBigtable, TierLocal, "no cbtemulator", "gcloud components install bigtable"},
		{engineBigtable, TierContainer, "cannot start containers", "RegisterContainer"},
		{engineSpanner, TierService, "SPANNER_EMULATOR_HOST is not set", "set SPANNER_EMULATOR_HOST"},
		{engineSpanner, TierLocal, "no emulator_main", "gcloud components install cloud-spanner-emulator"},
		{engineSpanner, TierContainer, "cannot start containers", "RegisterContainer"},
		{"docker", TierContainer, "no docker on PATH", "Docker"},
	} {
		f := finding(t, findings, c.engine, c.tier)
		if f.Found || !strings.Contains(f.Problem, c.problem) || !strings.Contains(f.Install, c.install) {
			t.Errorf("%s (%s): %+v, want %q and %q", c.engine, c.tier, f, c.problem, c.install)
		}
		if text := f.String(); !strings.Contains(text, "not found") || !strings.Contains(text, c.install) {
			t.Errorf("says %q", text)
		}
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestDoctorOnDocker(t *testing.T) {
	for script, want := range map[string]Finding{
		"echo 27.1":                         {Found: true, Version: "27.1"},
		"echo 'is it running?' >&2; exit 1": {Problem: "is it running?"},
	} {
		dir := programs(t, t.TempDir(), "docker")
		writeScript(t, dir, "docker", script)
		f := finding(t, doctorDocker(t.Context(), aMachine(map[string]string{"PATH": dir})), "docker", TierContainer)
		if f.Found != want.Found || f.Version != want.Version || !strings.Contains(f.Problem, want.Problem) {
			t.Errorf("%s: %+v, want %+v", script, f, want)
		}
	}
}
