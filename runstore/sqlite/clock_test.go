package sqlite_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func openAt(t *testing.T, path string, h *embedded.Host) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Clock: h})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// held creates a run whose lease is held for ttl.
func held(t *testing.T, s *sqlite.Store, ttl time.Duration) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: ttl}})
	if err != nil {
		t.Fatalf("create run: %v", err)
	}
	return created.Lease
}

func contend(t *testing.T, s *sqlite.Store) error {
	t.Helper()
	_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "contender", TTL: time.Minute},
	})
	return err
}

func now(t *testing.T, s *sqlite.Store) time.Time {
	t.Helper()
	now, err := s.Now(t.Context())
	if err != nil {
		t.Fatalf("now: %v", err)
	}
	return now
}

// TestProcessWithoutABootID opens a store by two processes. One knows the boot of its host, which has been up for
// a day; the other does not. The clock of the first stays as it is.
func TestProcessWithoutABootID(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	up, unknown := embedded.NewHost(), embedded.NewHost()
	for _, h := range []*embedded.Host{up, unknown} {
		h.Advance(24 * time.Hour)
	}
	unknown.SetBoot("")
	s := openAt(t, path, up)
	held(t, s, 5*time.Minute)
	other := openAt(t, path, unknown)
	if err := contend(t, other); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("through the process without a boot: got %v, want ErrLeaseHeld", err)
	}
	if err := contend(t, s); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("through the other process: got %v, want ErrLeaseHeld", err)
	}
	if d := now(t, s).Sub(now(t, other)); d > time.Hour {
		t.Errorf("the clocks are %v apart", d)
	}
}

// TestWallClockSteps lets the host's wall clock do what the names of the cases say. A lease holds
// for exactly its TTL of elapsed time in each.
func TestWallClockSteps(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		step time.Duration
	}{
		{"an hour back", -time.Hour},
		{"an hour forward", time.Hour},
		{"a year forward", 365 * 24 * time.Hour},
		{"a second forward", time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := embedded.NewHost()
			path := filepath.Join(t.TempDir(), "tape.db")
			holder, contender := openAt(t, path, h), openAt(t, path, h)
			held(t, holder, 5*time.Minute)
			before := now(t, holder)

			h.SetWall(tc.step)
			if err := contend(t, contender); !errors.Is(err, runstore.ErrLeaseHeld) {
				t.Errorf("right after the step: got %v, want ErrLeaseHeld", err)
			}
			late := openAt(t, path, h) // a process that starts after the step
			if err := contend(t, late); !errors.Is(err, runstore.ErrLeaseHeld) {
				t.Errorf("in a process started after the step: got %v, want ErrLeaseHeld", err)
			}
			for name, s := range map[string]*sqlite.Store{"holder": holder, "contender": contender, "late": late} {
				if n := now(t, s); n.Before(before) {
					t.Errorf("the store clock of %s went back from %v to %v", name, before, n)
				}
			}
			h.Advance(5*time.Minute + time.Second)
			if err := contend(t, contender); err != nil {
				t.Errorf("after the TTL: got %v, want the lease", err)
			}
		})
	}
}

// TestClockStepIsNoStall suspends the host under a lease with a bound on the time without progress.
// The time of the suspension does not count.
func TestClockStepIsNoStall(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), h)
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: 5 * time.Minute, MaxStall: 10 * time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	renew := func() error {
		_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: 5 * time.Minute})
		return err
	}
	for range 3 {
		h.SetWall(time.Hour) // as after a suspension, which stops the clock of the time that the host is up
		h.Advance(3 * time.Minute)
		if err := renew(); err != nil {
			t.Fatalf("a heartbeat after a suspension: %v", err)
		}
	}
	h.Advance(2 * time.Minute)
	if err := renew(); !errors.Is(err, runstore.ErrNoProgress) {
		t.Errorf("a heartbeat 11 minutes after the last progress: got %v, want ErrNoProgress", err)
	}
}

// TestStoreClockFollowsTheWallClock follows a wall clock that is ahead, so that due times of the
// day come true.
func TestStoreClockFollowsTheWallClock(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), h)
	h.SetWall(time.Hour)
	asked := h.Wall()
	if n := now(t, s); n.Before(asked.Add(-sqlite.MaxStep)) {
		t.Errorf("the store clock shows %v, want at most %v behind the wall clock of before, %v", n, sqlite.MaxStep, asked)
	}
}

// TestReboot reboots the host. Then only the wall clock shows how long the host was down, and a
// wall clock that was set back must not set the store clock back.
func TestReboot(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		wall time.Duration
		want error
	}{
		{"with the right time", time.Hour, nil},
		{"with a clock set back", -time.Hour, runstore.ErrLeaseHeld},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tape.db")
			h := embedded.NewHost()
			s := openAt(t, path, h)
			const up = 3 * time.Hour // after it was opened, so that only the grant shows how late it was
			h.Advance(up)
			held(t, s, 5*time.Minute)
			before := now(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			rebooted := embedded.NewHost()
			rebooted.SetBoot("boot-2")
			rebooted.Advance(up)
			rebooted.SetWall(tc.wall)
			s = openAt(t, path, rebooted)
			if n := now(t, s); n.Before(before.Add(-time.Second)) {
				t.Errorf("the store clock went back from %v to %v", before, n)
			}
			if err := contend(t, s); !errors.Is(err, tc.want) {
				t.Errorf("contend: got %v, want %v", err, tc.want)
			}
		})
	}
}

// TestNoBootClock uses the wall clock alone, kept from going back.
func TestNoBootClock(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	h.SetBoot("")
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), h)
	held(t, s, 5*time.Minute)
	before := now(t, s)
	h.SetWall(-time.Hour)
	if n := now(t, s); n.Before(before) {
		t.Errorf("the store clock went back from %v to %v", before, n)
	}
	h.SetWall(0)
	h.Advance(6 * time.Minute)
	if err := contend(t, s); err != nil {
		t.Errorf("after the TTL: got %v, want the lease", err)
	}
}

// TestOneHandleSetsTheClockOfAll sets the clock by one handle. It applies to every handle at once,
// including one that was suspended during the step and resumes after the wall clock was corrected.
// Otherwise the leases of that handle would have expired before they began.
func TestOneHandleSetsTheClockOfAll(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	path := filepath.Join(t.TempDir(), "tape.db")
	sleeper, other := openAt(t, path, h), openAt(t, path, h)
	now(t, sleeper)
	h.SetWall(time.Hour)
	held(t, other, time.Minute) // a write: it sets the clock
	ahead := now(t, other)
	h.SetWall(0)
	if n := now(t, sleeper); n.Before(ahead) {
		t.Errorf("the sleeper's clock shows %v, the other's showed %v", n, ahead)
	}
	h.Advance(2 * time.Minute)
	lease, err := sleeper.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "sleeper", TTL: 5 * time.Minute},
	})
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	if err := contend(t, other); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("contend for the sleeper's lease until %v: got %v, want ErrLeaseHeld", lease.ExpiresAt, err)
	}
}

// TestFailedTransactionSetsNoClock fails a transaction that sets the clock. Clock and leases stay
// unchanged, and the next transaction sets the clock.
func TestFailedTransactionSetsNoClock(t *testing.T) {
	t.Parallel()
	h := embedded.NewHost()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, h)
	held(t, s, 5*time.Minute)
	exec(t, path, `CREATE TRIGGER fault BEFORE INSERT ON events WHEN NEW.kind = 'fault' BEGIN SELECT RAISE(ABORT, 'injected'); END`)
	h.SetWall(time.Hour)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Append("fault", nil)
	if _, err := s.Commit(t.Context(), b); runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Fatalf("commit: got %v, want a failure that means not applied", err)
	}
	if err := contend(t, s); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("contend: got %v, want ErrLeaseHeld", err)
	}
	asked := h.Wall()
	if n := now(t, s); n.Before(asked.Add(-sqlite.MaxStep)) {
		t.Errorf("the store clock shows %v, want at most %v behind the wall clock of before, %v", n, sqlite.MaxStep, asked)
	}
}

// TestReadsAfterAClockStep reads after the wall clock was set ahead, while another process holds the write lock, and on a
// full disk. Reads that would set the clock neither wait nor fail (I6).
func TestReadsAfterAClockStep(t *testing.T) {
	t.Parallel()
	for name, obstruct := range map[string]func(t *testing.T, d *disk, path string){
		"write lock": func(t *testing.T, _ *disk, path string) { embedded.StallSQLite(t, path) },
		"full disk":  func(_ *testing.T, d *disk, _ string) { d.set(on("write", walFile, fault{code: sqlite3.SQLITE_FULL})) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, path, h := newDisk(t), filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
			t.Cleanup(func() { d.set(nil) })
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: h}.OnFileSystem(d.name))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			held(t, s, time.Minute)
			h.SetWall(time.Hour)
			obstruct(t, d, path)
			if at, err := s.Now(t.Context()); err != nil || !at.Before(h.Wall().Add(-sqlite.MaxStep)) {
				t.Errorf("now: %v, %v; want the clock as it was", at, err)
			}
			runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 1})
			if err != nil || len(runs) != 1 {
				t.Errorf("scan: %d runs, %v; want 1", len(runs), err)
			}
		})
	}
}
