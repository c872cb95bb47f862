package retain_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

const (
	day    = 24 * time.Hour
	window = 90 * day
	// The statuses of these tests.
	active runstore.Status = 1
	ended  runstore.Status = 4
)

// clock is a clock that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)} }

func (c *clock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Microsecond)
	return c.now
}

// Up implements sqlite.HostClock: the store clock is the wall clock.
func (c *clock) Up() (string, time.Duration) { return "", 0 }

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// eachEngine runs a test on an empty store of each engine whose clock can be moved.
func eachEngine(t *testing.T, f func(t *testing.T, s runstore.RunStore, c *clock)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		c := newClock()
		f(t, closing(t, memory.New(&memory.Options{Clock: c.Wall}).Open()), c)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		c := newClock()
		s, err := sqlite.Open(t.Context(), ":memory:", &sqlite.Options{Clock: c})
		if err != nil {
			t.Fatal(err)
		}
		f(t, closing(t, s), c)
	})
}

func closing(t *testing.T, s runstore.RunStore) runstore.RunStore {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// options returns options with a policy for the statuses of these tests, and a directory.
func options(t *testing.T) retain.Options {
	return retain.Options{
		Policy: retain.Policy{
			Journals: window, Feed: 30 * day,
			Ended:   func(r runstore.Run) (time.Time, bool) { return r.CreatedAt, r.Status == ended },
			Settled: func(i runstore.IndexName) bool { return i == "settled" },
		},
		Archive: retain.Dir(t.TempDir()), Operator: "test", Label: "test",
	}
}

// endedRun creates a run with a lease, some events and records, that has ended.
func endedRun(t *testing.T, s runstore.RunStore, id runstore.RunID, more ...func(*runstore.Writes)) {
	t.Helper()
	created := must(s.CreateRun(t.Context(), runstore.RunSpec{
		ID: id, Status: active, Lease: &runstore.LeaseSpec{Owner: "agent", Reactor: "agent", TTL: time.Minute},
	}))(t)
	w := runstore.Writes{}
	w.Append("began", []byte("data of "+id))
	w.Append("ended", nil)
	w.Put(runstore.SummaryKey, []byte("summary of "+id), runstore.Place{Index: "settled", At: runstore.After(0)})
	w.Put("record", []byte("\xff\x00"))
	status := ended
	w.Status = &status
	for _, f := range more {
		f(&w)
	}
	must(s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: created.Lease.Fence(), Writes: w}))(t)
}

// commit changes a run.
func commit(t *testing.T, s runstore.RunStore, id runstore.RunID, f func(*runstore.Writes)) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	f(&b.Writes)
	must(s.Commit(t.Context(), b))(t)
}

func exists(t *testing.T, s runstore.RunStore, id runstore.RunID) bool {
	t.Helper()
	_, err := s.GetRun(t.Context(), id)
	if runstore.KindOf(err) == runstore.ErrNotFound {
		return false
	}
	must(0, err)(t)
	return true
}

// files returns the files below a directory, by their names.
func files(t *testing.T, d retain.Target) []string {
	t.Helper()
	var all []string
	root := d.String()
	must(0, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(root, path)
			all = append(all, filepath.ToSlash(name))
		}
		return err
	}))(t)
	slices.Sort(all)
	return all
}

// pass makes a pass that has no error, and returns its report.
func pass(t *testing.T, s runstore.RunStore, o retain.Options) retain.Report {
	t.Helper()
	return must(retain.Pass(t.Context(), s, o))(t)
}

func runID(n int) runstore.RunID { return runstore.RunID(fmt.Sprintf("run-%d", n)) }

// hookedTarget calls hook before an object appears.
type hookedTarget struct {
	retain.Target
	after func(name string) error
}

func (h hookedTarget) String() string { return h.Target.String() }

// afterWrite returns a target that calls f after each object that was written.
func afterWrite(to retain.Target, f func(name string) error) retain.Target {
	return hookedTarget{to, f}
}

// intercepted returns a store whose methods but those of runstore.Mover go through around.
func intercepted(s runstore.RunStore, around intercept.Around) runstore.RunStore {
	return struct {
		runstore.RunStore
		runstore.Mover
	}{intercept.Store(s, around), s.(runstore.Mover)}
}
