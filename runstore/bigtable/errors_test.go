package bigtable_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// fails checks an error: its kind, what it says of the outcome, and why.
func fails(t testing.TB, err, kind, why error, outcome runstore.Outcome) {
	t.Helper()
	var e *runstore.OpError
	if !errors.Is(err, kind) || !errors.As(err, &e) || !errors.Is(err, why) {
		t.Errorf("got %v, want an OpError of kind %v because of %v", err, kind, why)
	}
	if got := runstore.OutcomeOf(err); got != outcome {
		t.Errorf("the outcome of %v is %v, want %v", err, got, outcome)
	}
}

// seqs checks how many events "run" has, and that a commit by the handle adds one.
func seqs(t testing.TB, s *bigtable.Store, want runstore.Seq) {
	t.Helper()
	done := commit(t, s, signal("run", "usable"))
	if done.FirstSeq != want+1 || done.LastSeq != want+1 {
		t.Errorf("the next commit is event %d to %d, want %d", done.FirstSeq, done.LastSeq, want+1)
	}
}

// A writer whom others come before for as long as it is patient has surely not written.
func TestOthersAreAlwaysFirst(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	var other *bigtable.Store
	busy, writes := false, runstore.Seq(0)
	s := openBare(t, table, meddle(func(ctx context.Context, send func() error) error {
		if !busy {
			return send()
		}
		commit(t, other, signal("run", "before"))
		writes++
		err := send()
		if writes == 3 { // the reply takes all the patience that there is
			<-ctx.Done()
		}
		return err
	}))
	other = openBare(t, table)
	hold(t, s, "run")
	var err error
	written := runstore.Seq(0)
	for patience := 2 * time.Second; writes != 3; patience *= 4 { // until it suffices for three times
		written += writes
		writes = 0
		bigtable.SetRetryTimeout(s, patience)
		busy = true
		_, err = s.Commit(t.Context(), signal("run", "loser"))
		busy = false
	}
	fails(t, err, runstore.ErrUnavailable, bigtable.ErrBusy, runstore.NotApplied)
	seqs(t, s, written+writes)
}

// A creation that finds the run, and then does not, since it was purged in between, was
// not made; another is.
func TestRunIsPurgedDuringACreation(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	lease := hold(t, other, "run")
	var err error
	if !whilePaused(t, table, "create run", 1, func() { _, err = s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}) },
		func() { purge(t, other, lease) }) {
		t.Fatal("it did not look again")
	}
	fails(t, err, runstore.ErrUnavailable, bigtable.ErrPurged, runstore.NotApplied)
	if _, err := other.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil || !created.New {
		t.Errorf("got %+v, %v, want a new run", created, err)
	}
	seqs(t, s, 0)
}

// A scan that takes longer than stale entries are kept is repeated, whichever of its reads took so
// long. When no time is left it returns an error and no entries.
func TestScanTakesTooLong(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "run")
	b := signal("run", "event")
	b.Put("key", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, b)
	q := runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10}
	const most = 500 * time.Millisecond
	usual := bigtable.BoundScans(s, most)
	for n := range 2 { // the entries, and the runs
		var found []runstore.IndexEntry
		var err error
		if !whilePaused(t, table, "scan index", n, func() { found, err = s.ScanIndex(t.Context(), q) },
			func() {
				slow := time.Now()
				await(t, "the end of a scan's time", func() bool { return time.Since(slow) > most })
			}) {
			t.Fatalf("a scan makes no read %d", n)
		}
		if err != nil || len(found) != 1 {
			t.Errorf("slow at read %d: got %d entries, %v, want 1", n, len(found), err)
		}
	}
	bigtable.BoundScans(s, -1) // every scan is too slow, before its first read
	bigtable.SetRetryTimeout(s, 50*time.Millisecond)
	found, err := s.ScanIndex(t.Context(), q)
	fails(t, err, runstore.ErrUnavailable, bigtable.ErrSlowScan, runstore.NotApplied)
	if len(found) != 0 {
		t.Errorf("it returned %d entries", len(found))
	}
	bigtable.SetRetryTimeout(s, hang)
	bigtable.BoundScans(s, usual)
	if found, err := s.ScanIndex(t.Context(), q); err != nil || len(found) != 1 {
		t.Errorf("got %d entries, %v, want 1", len(found), err)
	}
	seqs(t, s, 1)
}
