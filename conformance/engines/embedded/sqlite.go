package embedded

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// SQLite makes a database file for each case, in the directory that dir returns.
func SQLite(dir func(t conformance.T) string, opts sqlite.Options) conformance.Harness {
	return conformance.Harness{New: func(t conformance.T) conformance.Instance {
		path := filepath.Join(dir(t), "tape.db")
		opts, host := opts, NewHost()
		opts.Clock = host
		open := func(ctx context.Context) (runstore.RunStore, error) {
			s, err := sqlite.Open(ctx, path, &opts)
			if err != nil {
				return nil, err
			}
			return s, nil
		}
		return conformance.Instance{
			Open: open,
			// Only the host's wall clock can be wrong. The store clock follows the host's uptime,
			// which is the same for all of its processes.
			OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
				wrong := opts
				wrong.Clock = skewedHost{host, clock}
				s, err := sqlite.Open(ctx, path, &wrong)
				if err != nil {
					return nil, err
				}
				return s, nil
			},
			FollowsClockAhead: true,
			AdvanceClock:      host.Advance,
			BlockWriters: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
				return nil, StallSQLite(t, path) // a process that waits for a file's lock polls, so the lock's holder sees no waiters
			},
			URL: "sqlite:" + path,
		}
	}}
}

// SQLiteInMemory makes a database without a file for each case.
func SQLiteInMemory(opts sqlite.Options) conformance.Harness {
	return conformance.Harness{New: func(t conformance.T) conformance.Instance {
		opts, host := opts, NewHost()
		opts.Clock = host
		s, err := sqlite.Open(t.Context(), ":memory:", &opts)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		open := func(context.Context) (runstore.RunStore, error) { return s.NewHandle(), nil }
		return conformance.Instance{
			Open:         open, // no OpenSkewed: handles share one clock as they share the database
			AdvanceClock: host.Advance,
		}
	}}
}

// StallSQLite takes the lock that every writer of a database file needs, as a process that was
// stopped within a transaction would, until resume is called.
func StallSQLite(t conformance.T, path string) (resume func()) {
	t.Helper()
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=busy_timeout(60000)"
	db, err := sql.Open("sqlite", name)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	db.SetMaxOpenConns(1) // a lock belongs to one connection
	if _, err := db.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatalf("take the write lock: %v", err)
	}
	resume = sync.OnceFunc(func() {
		if _, err := db.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Errorf("let the write lock go: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(resume) // a case that fails early must not leave its writers blocked
	return resume
}

// Host simulates the clocks of a host for tests. It implements sqlite.HostClock.
type Host struct {
	mu     sync.Mutex
	began  time.Time
	boot   string
	passed time.Duration // on both clocks
	step   time.Duration // of the wall clock alone
}

// skewedHost is a host as seen by a process whose wall clock is wrong.
type skewedHost struct {
	*Host
	wall func() time.Time
}

// Wall implements sqlite.HostClock.
func (h skewedHost) Wall() time.Time { return h.wall() }

// NewHost returns a host with the right time.
func NewHost() *Host { return &Host{began: time.Now(), boot: "boot-1"} }

// Wall implements sqlite.HostClock.
func (h *Host) Wall() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.passed + h.step)
}

// Up implements sqlite.HostClock.
func (h *Host) Up() (string, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boot == "" {
		return "", 0
	}
	return h.boot, time.Since(h.began) + h.passed
}

// Advance moves both clocks forward by d.
func (h *Host) Advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passed += d
}

// SetWall makes the wall clock wrong by step.
func (h *Host) SetWall(step time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step = step
}

// SetBoot sets the name of the host's boot; "" means that the host reports neither it nor its uptime.
func (h *Host) SetBoot(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boot = name
}
