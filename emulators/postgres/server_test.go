package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// startServer starts a server of the test's own.
func startServer(t *testing.T, opts *Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	emulators.Require(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if s.local == nil {
		t.Skipf("%v is not ours to try this on", s.Engine())
	}
	return s
}

// sharedServer is the server of this process, which no test may kill.
func sharedServer(t *testing.T) *Server {
	t.Helper()
	s, err := Shared(t.Context())
	emulators.Require(t, err)
	return s
}

// newDatabase makes a database of the test's own.
func newDatabase(t *testing.T, s *Server, template string) Database {
	t.Helper()
	d, err := s.NewDatabase(t.Context(), template)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// execute runs statements on a connection of their own.
func execute(ctx context.Context, url string, statements ...string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeConn(ctx, c)
	for _, statement := range statements {
		if _, err := c.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// ask runs a query that answers one value.
func ask[V any](t *testing.T, url, query string, args ...any) V {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t.Context(), c)
	var v V
	if err := c.QueryRow(t.Context(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestServersAreSeparateAndLeaveNothing(t *testing.T) {
	t.Parallel()
	a, b := startServer(t, nil), startServer(t, nil)
	if a.Address() == b.Address() {
		t.Fatalf("both servers are at %s", a.Address())
	}
	if err := execute(t.Context(), a.URL(), "CREATE TABLE only_here (n int)"); err != nil {
		t.Fatal(err)
	}
	if ask[bool](t, b.URL(), "SELECT to_regclass('only_here') IS NOT NULL") {
		t.Error("a table of one server is in the other")
	}
	socket := fmt.Sprintf("host=%s port=%d user=postgres", a.local.sockets(), a.local.port)
	if !ask[bool](t, socket, "SELECT to_regclass('only_here') IS NOT NULL") {
		t.Error("the Unix socket leads elsewhere")
	}
	for range 2 { // closing again does nothing
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(a.local.dir.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a closed server: %v, want that it is gone", err)
	}
	if pids := host.ProcessesIn(a.local.data); len(pids) > 0 {
		t.Errorf("processes of a closed server: %v", pids)
	}
	if err := a.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("restart of a closed server: %v", err)
	}
	if got := ask[int](t, b.URL(), "SELECT 1"); got != 1 {
		t.Errorf("the other server answers %d, want 1", got)
	}
}

func TestEngine(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	version := ask[string](t, s.URL(), "SELECT split_part(version(), ' ', 2)")
	if got, want := s.Engine().String(), "postgres "+version+" (local)"; got != want {
		t.Errorf("engine %q, want %q", got, want)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		opts *Options
		want map[string]string
	}{
		{"default", nil, map[string]string{"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off", "autovacuum": "on"}},
		{"durable", &Options{Durable: true}, map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}},
		{"given", &Options{Settings: map[string]string{"Max_Connections": "17", "cluster_name": "two words"}},
			map[string]string{"max_connections": "17", "cluster_name": "two words", "fsync": "off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, c.opts)
			for name, want := range c.want {
				if got := ask[string](t, s.URL(), "SELECT current_setting($1)", name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestSettingsThatCannotBe(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"port":            "cannot be chosen",
		"no_such_setting": `unrecognized configuration parameter "no_such_setting"`, // the server's log
		"max_connections": "invalid value",
	} {
		s, err := Start(t.Context(), &Options{Settings: map[string]string{setting: "x"}})
		if errors.Is(err, emulators.ErrMissing) {
			emulators.Require(t, err)
		}
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("setting %s: %v, want %q", setting, err, want)
		}
	}
}

func TestDirectoryKeepsItsData(t *testing.T) {
	t.Parallel()
	// Not t.TempDir: its parent admits nobody but us, and the server may be another
	// user.
	dir, err := os.MkdirTemp(host.TemporaryRoot(), "emulators-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	opts := &Options{Dir: filepath.Join(dir, "kept")}
	first := startServer(t, opts)
	if err := execute(t.Context(), first.URL(), "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	if second, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server in the directory: %v, %v; want that it is in use", second, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again := startServer(t, opts)
	if got := ask[int](t, again.URL(), "SELECT n FROM kept"); got != 7 {
		t.Errorf("kept %d, want 7", got)
	}
}

func TestStartHonoursContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, err := Start(ctx, nil)
	if errors.Is(err, emulators.ErrMissing) {
		emulators.Require(t, err)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; want that it was cancelled", s, err)
	}
}

func TestSharedIsOne(t *testing.T) {
	t.Parallel()
	if a, b := sharedServer(t), sharedServer(t); a != b {
		t.Error("two shared servers")
	}
}
