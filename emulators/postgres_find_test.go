package emulators

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// aMachine has nothing but these variables and directories.
func aMachine(variables map[string]string, globs ...string) *machine {
	return &machine{
		getenv: func(name string) string { return variables[name] },
		globs:  map[string][]string{enginePostgres: globs},
	}
}

// programs makes a directory with programs that do nothing.
func programs(t *testing.T, dir string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		writeScript(t, dir, name, "")
	}
	return dir
}

// writeScript makes a program that does what a shell script says.
func writeScript(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, executableName(name)), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereProgramsAreFound(t *testing.T) {
	root := t.TempDir()
	onPath := programs(t, filepath.Join(root, "path"), "initdb", "postgres")
	half := programs(t, filepath.Join(root, "half"), "postgres") // a client's package, say
	old := programs(t, filepath.Join(root, "lib", "9.6", "bin"), "initdb", "postgres")
	recent := programs(t, filepath.Join(root, "lib", "16", "bin"), "initdb", "postgres")
	glob := filepath.Join(root, "lib", "*", "bin")
	config := programs(t, filepath.Join(root, "config"), "pg_config")
	writeScript(t, config, "pg_config", "echo "+old)
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
		if got, err := aMachine(c.variables, glob).findPostgres(t.Context()); got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	_, err := aMachine(map[string]string{"EMULATORS_POSTGRES_BIN": half, "PATH": onPath}, glob).findPostgres(t.Context())
	if !contains(err, "EMULATORS_POSTGRES_BIN="+half) || errors.Is(err, ErrMissing) {
		t.Errorf("a named directory without the programs: %v, want an error that is not ErrMissing", err)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	_, err := postgresOn(t.Context(), aMachine(map[string]string{"PATH": "/nowhere"}, "/no/*/bin"), nil)
	if !errors.Is(err, ErrMissing) {
		t.Fatalf("got %v, want ErrMissing", err)
	}
	for _, part := range []string{"initdb", "EMULATORS_POSTGRES_BIN", "pg_config", "/nowhere", "/no/*/bin", "apt-get install postgresql", "EMULATORS_POSTGRES_URL"} {
		if !contains(err, part) {
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
		_, err := postgresOn(t.Context(), aMachine(c.variables), nil)
		if !contains(err, c.want) || errors.Is(err, ErrMissing) {
			t.Errorf("%v: got %v, want %q and not ErrMissing: it was asked for", c.variables, err, c.want)
		}
	}
}

// aContainer stands for a container: it is a private server.
type aContainer struct{ *PostgresServer }

func (aContainer) Image() string { return "an image" }

func TestContainer(t *testing.T) {
	start := func(ctx context.Context) (ContainerServer, error) {
		s, err := Postgres(ctx, nil)
		return aContainer{s}, err
	}
	RegisterContainer(enginePostgres, start)
	t.Cleanup(func() { delete(containers.start, enginePostgres) })
	startPostgres(t, nil)
	s, err := postgresOn(t.Context(), aMachine(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Engine().Tier; got != TierContainer {
		t.Errorf("tier %q, want %q", got, TierContainer)
	}
	if got := ask[int](t, newDatabase(t, s, "").URL, "SELECT 1"); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
	if err := s.Freeze(); !errors.Is(err, ErrNotOwned) {
		t.Errorf("freeze of a container: %v, want ErrNotOwned", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !s.container.(aContainer).local.closed {
		t.Error("the container was not closed")
	}
	defer func() {
		if recover() == nil {
			t.Error("a second container for an engine was taken")
		}
	}()
	RegisterContainer(enginePostgres, start)
}

func TestService(t *testing.T) {
	t.Parallel()
	theirs := startPostgres(t, nil)
	m := aMachine(map[string]string{"EMULATORS_POSTGRES_URL": theirs.URL()})
	s, err := postgresOn(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Engine(); got.Tier != TierService || got.Version != theirs.Engine().Version {
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
		if err := op(); !errors.Is(err, ErrNotOwned) || !contains(err, name) {
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
	_, err = postgresOn(t.Context(), m, &PostgresOptions{Durable: true, Settings: map[string]string{"max_connections": "3", "no.such": "x"}})
	for _, want := range []string{`fsync is "off"`, `max_connections is "500"`, "no setting no.such"} {
		if !contains(err, want) {
			t.Errorf("settings that a service does not have: %v, want %s", err, want)
		}
	}
	if _, err := postgresOn(t.Context(), m, &PostgresOptions{Dir: "/tmp/x"}); !contains(err, "/tmp/x") {
		t.Errorf("a directory for a service: %v", err)
	}
}
