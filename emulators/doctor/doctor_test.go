package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestRunReportsAllTiers(t *testing.T) {
	t.Parallel()
	var got []string
	for _, f := range Run(t.Context()) {
		got = append(got, f.Engine+" "+f.Tier)
		if text := f.String(); f.Found == strings.Contains(text, "not found") {
			t.Errorf("%+v says %q", f, text)
		}
	}
	if want := []string{
		"postgres service", "postgres local", "postgres container",
		"bigtable service", "bigtable emulator", "bigtable local", "bigtable container",
		"spanner service", "spanner local", "spanner container", "docker container",
	}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDockerOnABareMachine(t *testing.T) {
	t.Parallel()
	hosttest.CheckMissing(t, []emulators.Finding{docker(t.Context(), hosttest.Machine(nil))}, []emulators.Finding{
		{Engine: "docker", Tier: emulators.TierContainer, Problem: "no docker on PATH", Install: "Docker"},
	})
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestDocker(t *testing.T) {
	for script, want := range map[string]emulators.Finding{
		"echo 27.1":                         {Found: true, Version: "27.1"},
		"echo 'is it running?' >&2; exit 1": {Problem: "is it running?"},
	} {
		dir := hosttest.Programs(t, t.TempDir(), "docker")
		hosttest.WriteScript(t, dir, "docker", script)
		f := docker(t.Context(), hosttest.Machine(map[string]string{"PATH": dir}))
		if f.Found != want.Found || f.Version != want.Version || !strings.Contains(f.Problem, want.Problem) {
			t.Errorf("%s: %+v, want %+v", script, f, want)
		}
	}
}
