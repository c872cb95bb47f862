package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestKillAndRestartKeepWhatWasCommitted(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		s := startServer(t, &Options{Durable: durable})
		d := newDatabase(t, s, "")
		if err := execute(t.Context(), d.URL, "CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 1000)"); err != nil {
			t.Fatal(err)
		}
		// A session in the middle of a statement goes with the server.
		busy := make(chan error, 1)
		go func() { busy <- execute(t.Context(), d.URL, "SELECT pg_sleep(600)") }()
		awaitQuery(t, s.URL(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
		for range 2 { // killing again does nothing
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-busy; err == nil {
			t.Error("a query of ten minutes ended well in a killed server")
		}
		if err := execute(t.Context(), d.URL); err == nil {
			t.Error("a killed server takes connections")
		}
		if pids := host.ProcessesIn(s.local.data); len(pids) > 0 {
			t.Errorf("processes of a killed server: %v", pids)
		}
		address := s.Address()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Address() != address {
			t.Errorf("restarted at %s, was at %s", s.Address(), address)
		}
		if got := ask[int](t, d.URL, "SELECT count(*) FROM kept"); got != 1000 {
			t.Errorf("%d rows after the crash, want 1000 (durable: %v)", got, durable)
		}
		if err := s.Restart(t.Context()); err != nil { // of a running server
			t.Fatal(err)
		}
		if got := ask[int](t, d.URL, "SELECT count(*) FROM kept"); got != 1000 {
			t.Errorf("%d rows after a clean restart, want 1000", got)
		}
	}
}

// awaitQuery waits until a query answers true.
func awaitQuery(t *testing.T, url, query string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t.Context(), c)
	if err := host.Await(hosttest.Hang, func() (yes bool, err error) {
		err = c.QueryRow(t.Context(), query).Scan(&yes)
		return yes, err
	}); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	for range 2 { // freezing again does nothing
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
	}
	soon := func(f func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return f(ctx)
	}
	if err := soon(c.Ping); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a query of a frozen server: %v, want that it hangs", err)
	}
	if err := soon(func(ctx context.Context) error { return execute(ctx, s.URL()) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new connection to a frozen server: %v, want that it hangs", err)
	}
	for range 2 {
		if err := s.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask[int](t, s.URL(), "SELECT 1"); got != 1 {
		t.Errorf("a thawed server answers %d, want 1", got)
	}
	// A frozen server can be killed, and closed.
	for _, end := range []func() error{s.Kill, s.Close} {
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if pids := host.ProcessesIn(s.local.data); len(pids) > 0 {
			t.Errorf("processes of a server that was ended frozen: %v", pids)
		}
	}
}

func TestServerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"running", "frozen"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			startServer(t, nil) // to know that it can be done here
			pid, dir := hosttest.KilledOwner(t, role)
			data := filepath.Join(dir, "data")
			if err := host.Await(hosttest.Hang, func() (bool, error) { return len(host.ProcessesIn(data)) == 0, nil }); err != nil {
				t.Fatalf("the server %d in %s outlives its owner: %v", pid, dir, err)
			}
			// Another process may be sweeping it just now; then it is gone soon.
			if err := host.Await(hosttest.Hang, func() (bool, error) {
				sweep()
				_, err := os.Stat(dir)
				return errors.Is(err, os.ErrNotExist), nil
			}); err != nil {
				t.Errorf("the directory of the dead owner is not swept: %v", err)
			}
		})
	}
}

// What a killed owner left is gone after the next start, also if the server still
// runs there.
func TestStartSweepsWhatOthersLeft(t *testing.T) {
	t.Parallel()
	abandoned := startServer(t, nil)
	_ = abandoned.local.dir.Lock.Close() // as if its owner had died, and it had not noticed
	startServer(t, nil)
	// Another process may have begun to sweep it; then it is gone soon.
	if err := host.Await(hosttest.Hang, func() (bool, error) {
		_, err := os.Stat(abandoned.local.dir.Path)
		return errors.Is(err, os.ErrNotExist) && abandoned.local.proc.Ended(), nil
	}); err != nil {
		t.Errorf("the abandoned server and its directory are still there: %v", err)
	}
	abandoned.local.dir.Lock, _ = os.Open(os.DevNull) // for Close to close
}
