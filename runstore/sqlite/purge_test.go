package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

const (
	purgedEvents  = 40
	purgedRecords = 20
)

// seedRun writes the events, records and batch ids of a run, one of each in a commit. One of
// its records has a version higher than the number of records.
func seedRun(t *testing.T, s *sqlite.Store, id runstore.RunID) {
	t.Helper()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "owner", TTL: runstore.MaxTTL}}); err != nil {
		t.Fatal(err)
	}
	for i := range purgedEvents {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.ID = runstore.BatchID(fmt.Sprint("batch-", i))
		b.Append("test", []byte(id))
		key := runstore.RecordKey(fmt.Sprint("record-", i%purgedRecords))
		b.Put(key, []byte(id), runstore.Place{Index: "queue", At: runstore.After(0)})
		if i > purgedRecords {
			b.Put("versions", nil)
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func purgeRun(ctx context.Context, t *testing.T, s *sqlite.Store, id runstore.RunID) {
	t.Helper()
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	if _, err := s.Commit(ctx, b); err != nil {
		t.Fatalf("purge: %v", err)
	}
}

// rowsOf counts the rows that stand under other numbers than those of runs.
func rowsOf(t *testing.T, path string) (n int64) {
	t.Helper()
	for _, table := range []string{"events", "journal", "records", "places", "batches", "grants"} {
		n += query[int64](t, path, "SELECT count(*) FROM "+table+" WHERE run <> 0 AND run NOT IN (SELECT no FROM runs)")
	}
	return n
}

// checkNothingLeft fails the test if a purge has left rows.
func checkNothingLeft(t *testing.T, path string) {
	t.Helper()
	if n := rowsOf(t, path); n != 0 {
		t.Errorf("purged runs left %d rows behind", n)
	}
	if n := query[int64](t, path, "SELECT count(*) FROM events WHERE run = 0 AND length(data) + length(kind) + length(owner) > 0"); n != 0 {
		t.Errorf("%d markers have content of purged events", n)
	}
	if n := query[int64](t, path, "SELECT count(*) FROM garbage"); n != 0 {
		t.Errorf("%d purged runs are still to be deleted", n)
	}
}

// hookContext is a context that runs f whenever its Err is called: before an operation, and between
// the steps of a purge.
type hookContext struct {
	context.Context
	f func() error
}

func (b hookContext) Err() error { return b.f() }

// TestOthersCommitBetweenTheStepsOfAPurge purges a run, whose rows are deleted in separate
// operations of few rows each. Others commit between these operations. The purged run is gone for
// every reader from the first step on, and what is created again under its id is not deleted.
func TestOthersCommitBetweenTheStepsOfAPurge(t *testing.T) {
	t.Parallel()
	const most = 8
	path := filepath.Join(t.TempDir(), "tape.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.SweepingRows(most))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	seedRun(t, s, "purged")
	version := query[int64](t, path, "SELECT max(version) FROM records")
	lease := held(t, s, runstore.MaxTTL)
	before := int64(-1)
	commits := 0
	purgeRun(hookContext{t.Context(), func() error {
		left := rowsOf(t, path)
		if left == 0 {
			return nil // the purge has not begun, or has ended
		}
		if before >= 0 && before-left > most+64 { // one statement may delete 64 rows more
			t.Errorf("one step deleted %d rows, want about %d", before-left, most)
		}
		before = left
		if err := appendEvent(t, s, lease); err != nil {
			t.Errorf("commit on another run: %v", err)
		}
		if commits++; commits == 1 {
			purgedIsGone(t, s, commits)
			made := runstore.RunSpec{ID: "purged"}
			made.Writes.Append("test", []byte("anew"))
			made.Writes.Put("versions", []byte("anew"))
			if _, err := s.CreateRun(t.Context(), made); err != nil {
				t.Fatal(err)
			}
		}
		checkCreatedAgain(t, s, runstore.Version(version), commits)
		return nil
	}}, t, s, "purged")
	if commits < 5 {
		t.Errorf("other runs committed %d times while the purge was deleting, want at least 5", commits)
	}
	checkNothingLeft(t, path)
	checkCreatedAgain(t, s, runstore.Version(version), commits)
}

// purgedIsGone fails the test if anything of the run "purged" can be read.
func purgedIsGone(t *testing.T, s *sqlite.Store, others int) {
	t.Helper()
	if _, err := s.GetRun(t.Context(), "purged"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("get run: got %v, want ErrNotFound", err)
	}
	if _, err := s.ReadJournal(t.Context(), "purged", 1, 10); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("read journal: got %v, want ErrNotFound", err)
	}
	feedHas(t, s, others)
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Limit: 100})
	if err != nil || len(entries) != 0 {
		t.Errorf("got entries %+v, error %v; want none of a purged run", entries, err)
	}
}

// feedHas fails the test unless the feed has n events, read from both ends.
func feedHas(t *testing.T, s *sqlite.Store, n int) {
	t.Helper()
	for _, newest := range []bool{false, true} {
		feed, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage, Newest: newest})
		if err != nil || len(feed) != n {
			t.Errorf("got %d events, error %v, newest %t; want %d of the other run", len(feed), err, newest, n)
		}
	}
}

// checkCreatedAgain fails the test unless the run "purged" contains only what was written after the
// purge.
func checkCreatedAgain(t *testing.T, s *sqlite.Store, version runstore.Version, others int) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), "purged", 1, 10)
	if err != nil || len(events) != 1 || string(events[0].Data) != "anew" {
		t.Errorf("got events %+v, error %v; want the one that was appended after the purge", events, err)
	}
	records, err := s.ReadRecords(t.Context(), "purged", runstore.RecordQuery{Limit: 100})
	if err != nil || len(records) != 1 || records[0].Version <= version {
		t.Errorf("got records %+v, error %v; want the one that was put after the purge, above version %d", records, err, version)
	}
	feedHas(t, s, others+1)
}

// TestPurgeBehindItsDeadline purges a run for a caller that has no time left: the purge is
// complete, and the handle deletes the rows.
func TestPurgeBehindItsDeadline(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.SweepingRows(8))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	seedRun(t, s, "purged")
	purgeRun(hookContext{t.Context(), func() error {
		if rowsOf(t, path) > 0 {
			return context.DeadlineExceeded
		}
		return nil
	}}, t, s, "purged")
	purgedIsGone(t, s, 0)
	sqlite.AwaitBackground(s)
	checkNothingLeft(t, path)
}

// TestCloseDuringAPurge closes the handle while a commit deletes the rows of a purged run. The
// commit returns after one more step at most, and the next opening deletes the remaining rows.
func TestCloseDuringAPurge(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.SweepingRows(8))
	if err != nil {
		t.Fatal(err)
	}
	seedRun(t, s, "purged")
	closing, closed := false, make(chan error, 1)
	purgeRun(hookContext{t.Context(), func() error {
		if !closing && rowsOf(t, path) > 0 {
			closing = true
			go func() { closed <- s.Close() }()
			<-sqlite.Closing(s)
		}
		return nil
	}}, t, s, "purged")
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if rowsOf(t, path) == 0 {
		t.Error("the commit deleted all rows, though the handle was closed")
	}
	next := openAt(t, path, embedded.NewHost())
	sqlite.AwaitBackground(next)
	checkNothingLeft(t, path)
}

// TestInterruptedPurge interrupts a purge at any step, by a full disk or a kill. The next purge or
// the next opening completes it.
func TestInterruptedPurge(t *testing.T) {
	t.Parallel()
	for n, ended := 2, false; !ended; n++ { // the first is the purge itself
		t.Run(fmt.Sprint("transaction-", n), func(t *testing.T) {
			d, path := newDisk(t), filepath.Join(t.TempDir(), "tape.db")
			t.Cleanup(func() { d.set(nil) })
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.SweepingRows(32).OnFileSystem(d.name))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			seedRun(t, s, "purged")
			seedRun(t, s, "other")
			syncs := 0
			d.set(func(call, file string) fault {
				if call == "sync" && file == walFile {
					syncs++
				}
				if call == "write" && file == walFile && syncs >= n-1 {
					return fault{code: sqlite3.SQLITE_FULL}
				}
				return fault{}
			})
			purgeRun(t.Context(), t, s, "purged")
			sqlite.AwaitBackground(s)
			ended = d.set(nil) == 0
			if left := query[int64](t, path, "SELECT count(*) FROM garbage"); left > 0 == ended {
				t.Errorf("%d purged runs are to be deleted, the purge was interrupted: %t", left, !ended)
			}
			feedHas(t, s, purgedEvents)
			copied := survivorPath(t, path)
			next := openAt(t, copied, embedded.NewHost())
			sqlite.AwaitBackground(next)
			checkNothingLeft(t, copied)
			feedHas(t, next, purgedEvents)

			purgeRun(t.Context(), t, s, "other")
			checkNothingLeft(t, path)
			feedHas(t, s, 0)
		})
		if n > 20 {
			t.Fatal("the purge never succeeds")
		}
	}
}

// TestPurgedEndOfTheFeed purges the event at the last position of the feed. No other event gets
// that position, whichever handle deletes the event, and whenever.
func TestPurgedEndOfTheFeed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	seedRun(t, s, "purged")
	last := lastPosition(t, s)
	purgeRun(t.Context(), t, s, "purged")
	checkNothingLeft(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := openAt(t, path, embedded.NewHost())
	if len(epochs(t, other)) != 0 {
		t.Error("the witness takes the purge for a restored backup")
	}
	if err := appendEvent(t, other, held(t, other, runstore.MaxTTL)); err != nil {
		t.Fatal(err)
	}
	feed, err := other.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: 10})
	if err != nil || len(feed) != 1 || feed[0].Position <= last {
		t.Errorf("got %+v, error %v; want one event above position %d", feed, err, last)
	}
}

// TestPurgedRunsHaveNumbersOfTheirOwn purges runs together, and one after the other before their
// rows are deleted. Each keeps a number, a token and grants of its own.
func TestPurgedRunsHaveNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	var batches []runstore.Batch
	for _, id := range []runstore.RunID{"a", "b", "c"} {
		seedRun(t, s, id)
		for range 2 {
			grant := runstore.LeaseSpec{Owner: "owner", TTL: runstore.MaxTTL, Grant: "grant of " + runstore.GrantID(id)}
			if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: grant, Preempt: "test"}); err != nil {
				t.Fatal(err)
			}
		}
		grant := runstore.LeaseSpec{Owner: "owner", TTL: runstore.MaxTTL}
		if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: grant, Preempt: "test"}); err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		batches = append(batches, b)
	}
	numbers := query[string](t, path, "SELECT group_concat(no) FROM runs")
	if _, err := s.CommitMulti(t.Context(), batches); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, path)
	if got := query[string](t, path, "SELECT group_concat(no) FROM runs"); got == numbers {
		t.Errorf("the runs have the numbers %s as before the purge", got)
	}
	for _, b := range slices.Backward(batches) {
		late := runstore.LeaseSpec{Owner: "late", TTL: runstore.MaxTTL, Grant: "grant of " + runstore.GrantID(b.Run())}
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: b.Run(), Lease: &late}); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("a create with a grant id of before the purge: got %v, want ErrFenced", err)
		}
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: b.Run(), Lease: &runstore.LeaseSpec{Owner: "owner", TTL: runstore.MaxTTL}})
		if err != nil || created.Lease.Token != 4 {
			t.Errorf("got %+v, error %v; want token 4", created.Lease, err)
		}
	}
}
