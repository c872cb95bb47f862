package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereProgramsAreFound(t *testing.T) {
	root := t.TempDir()
	onPath := hosttest.Programs(t, filepath.Join(root, "path"), "initdb", "postgres")
	half := hosttest.Programs(t, filepath.Join(root, "half"), "postgres") // a client's package, say
	old := hosttest.Programs(t, filepath.Join(root, "lib", "9.6", "bin"), "initdb", "postgres")
	recent := hosttest.Programs(t, filepath.Join(root, "lib", "16", "bin"), "initdb", "postgres")
	glob := filepath.Join(root, "lib", "*", "bin")
	config := hosttest.Programs(t, filepath.Join(root, "config"), "pg_config")
	hosttest.WriteScript(t, config, "pg_config", "echo "+old)
	list := func(dirs ...string) string { return strings.Join(dirs, string(os.PathListSeparator)) }
	for _, c := range []struct {
		name      string
		variables map[string]string
		want      string
	}{
		{"named directory", map[string]string{"EMULATORS_POSTGRES_BIN": old, "PATH": onPath}, old},
		{"pg_config", map[string]string{"PATH": list(onPath, config)}, old},
		{"search path", map[string]string{"PATH": list(half, onPath)}, onPath},
		{"newest package", map[string]string{"PATH": half}, recent},
	} {
		if got, err := findPrograms(t.Context(), hosttest.Machine(c.variables, glob)); got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	_, err := findPrograms(t.Context(), hosttest.Machine(map[string]string{"EMULATORS_POSTGRES_BIN": half, "PATH": onPath}, glob))
	if !hosttest.Contains(err, "EMULATORS_POSTGRES_BIN="+half) || errors.Is(err, emulators.ErrMissing) {
		t.Errorf("a named directory without the programs: %v, want an error that is not ErrMissing", err)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	_, err := startOn(t.Context(), hosttest.Machine(map[string]string{"PATH": "/nowhere"}, "/no/*/bin"), nil)
	if !errors.Is(err, emulators.ErrMissing) {
		t.Fatalf("got %v, want ErrMissing", err)
	}
	for _, part := range []string{"initdb", "EMULATORS_POSTGRES_BIN", "pg_config", "/nowhere", "/no/*/bin", "apt-get install postgresql", "EMULATORS_POSTGRES_URL"} {
		if !hosttest.Contains(err, part) {
			t.Errorf("%v\ndoes not name %s", err, part)
		}
	}
}

func TestForcedTiers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		variables map[string]string
		want      string
	}{
		{map[string]string{"EMULATORS": "docker"}, `EMULATORS="docker" is not a tier`},
		{map[string]string{"EMULATORS_POSTGRES": "Local"}, `EMULATORS_POSTGRES="Local" is not a tier`},
		{map[string]string{"EMULATORS": "service"}, "EMULATORS_POSTGRES_URL, the address of a server, is not set"},
		{map[string]string{"EMULATORS": "local", "EMULATORS_POSTGRES_URL": "postgres://x"}, "apt-get install postgresql"},
		{map[string]string{"EMULATORS": "local", "EMULATORS_POSTGRES": "container"}, "nothing has called RegisterContainer"},
		{map[string]string{"EMULATORS_POSTGRES_URL": "host=/tmp user=x"}, "must have the form postgres://"},
		{map[string]string{"EMULATORS_POSTGRES_URL": "postgres://h:p/x"}, "must have the form postgres://"},
	} {
		_, err := startOn(t.Context(), hosttest.Machine(c.variables), nil)
		if !hosttest.Contains(err, c.want) || errors.Is(err, emulators.ErrMissing) {
			t.Errorf("%v: got %v, want %q and not ErrMissing: it was asked for", c.variables, err, c.want)
		}
	}
}

// aContainer stands for a container: it is a private server.
type aContainer struct{ *Server }

func (aContainer) Image() string { return "an image" }

func TestContainer(t *testing.T) {
	start := func(ctx context.Context) (emulators.ContainerServer, error) {
		s, err := Start(ctx, nil)
		return aContainer{s}, err
	}
	startServer(t, nil)
	m := hosttest.Machine(nil)
	m.Containers = func(engine string) host.ContainerStart {
		if engine != engineName {
			t.Errorf("asked for a container of %s", engine)
		}
		return start
	}
	s, err := startOn(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Engine().Tier; got != emulators.TierContainer {
		t.Errorf("tier %q, want %q", got, emulators.TierContainer)
	}
	if got := ask[int](t, newDatabase(t, s, "").URL, "SELECT 1"); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
	if err := s.Freeze(); !errors.Is(err, emulators.ErrNotOwned) {
		t.Errorf("freeze of a container: %v, want ErrNotOwned", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !s.container.(aContainer).local.closed {
		t.Error("the container was not closed")
	}
}

func TestService(t *testing.T) {
	t.Parallel()
	theirs := startServer(t, nil)
	m := hosttest.Machine(map[string]string{"EMULATORS_POSTGRES_URL": theirs.URL()})
	s, err := startOn(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Engine(); got.Tier != emulators.TierService || got.Version != theirs.Engine().Version {
		t.Errorf("engine %v, want %s by service", got, theirs.Engine().Version)
	}
	if s.Address() != theirs.Address() {
		t.Errorf("address %s, want %s", s.Address(), theirs.Address())
	}
	const databases = "SELECT count(*) FROM pg_database"
	before := ask[int](t, theirs.URL(), databases)
	template, err := s.Template(t.Context(), "k", func(ctx context.Context, url string) error {
		return execute(ctx, url, "CREATE TABLE kept ()")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := execute(t.Context(), newDatabase(t, s, template).URL, "TABLE kept"); err != nil {
		t.Error(err)
	}
	for name, op := range map[string]func() error{
		"kill": s.Kill, "freeze": s.Freeze, "thaw": s.Thaw, "restart": func() error { return s.Restart(t.Context()) },
	} {
		if err := op(); !errors.Is(err, emulators.ErrNotOwned) || !hosttest.Contains(err, name) {
			t.Errorf("%s of a server that is not ours: %v, want ErrNotOwned", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if after := ask[int](t, theirs.URL(), databases); after != before {
		t.Errorf("%d databases after Close, were %d", after, before)
	}
	// What it cannot be told to be it must be already.
	_, err = startOn(t.Context(), m, &Options{Durable: true, Settings: map[string]string{"max_connections": "3", "no.such": "x"}})
	for _, want := range []string{`fsync is "off"`, `max_connections is "500"`, "no setting no.such"} {
		if !hosttest.Contains(err, want) {
			t.Errorf("settings that a service does not have: %v, want %s", err, want)
		}
	}
	if _, err := startOn(t.Context(), m, &Options{Dir: "/tmp/x"}); !hosttest.Contains(err, "/tmp/x") {
		t.Errorf("a directory for a service: %v", err)
	}
}
