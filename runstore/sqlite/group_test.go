package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// grouped lets n commits wait for the write lock together, so that they share the
// transaction that follows, and returns each one's error.
func grouped(t *testing.T, s *sqlite.Store, path string, n int, batch func(i int) runstore.Batch) []error {
	t.Helper()
	resume := embedded.StallSQLite(t, path)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, errs[i] = s.Commit(t.Context(), batch(i)) })
	}
	awaitQueued(t, s, n)
	resume()
	wg.Wait()
	return errs
}

// awaitQueued waits until n writes wait for the write lock.
func awaitQueued(t *testing.T, s *sqlite.Store, n int) {
	t.Helper()
	for deadline := time.After(5 * time.Minute); sqlite.Queued(s) < n; {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("%d of %d writes are waiting", sqlite.Queued(s), n)
		}
	}
}

// TestEpochAndGrantsInAGroup makes a grant in the same group commit as a new epoch, after the
// raise. The grant and the positions of its events belong to that epoch (I2, I10).
func TestEpochAndGrantsInAGroup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	const grants = 4
	for i := range grants {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("run-", i))}); err != nil {
			t.Fatal(err)
		}
	}
	resume := embedded.StallSQLite(t, path)
	var wg sync.WaitGroup
	var epoch runstore.Epoch
	var failed error
	wg.Go(func() { epoch, failed = s.RaiseEpoch(t.Context(), "test") })
	awaitQueued(t, s, 1)
	leases, errs := make([]runstore.Granted, grants), make([]error, grants)
	for i := range grants {
		wg.Go(func() {
			req := runstore.AcquireRequest{Run: runstore.RunID(fmt.Sprint("run-", i)), LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}}
			req.Writes.Append("test", nil)
			leases[i], errs[i] = s.AcquireLease(t.Context(), req)
		})
	}
	awaitQueued(t, s, 1+grants)
	resume()
	wg.Wait()
	if err := errors.Join(append(errs, failed)...); err != nil {
		t.Fatal(err)
	}
	for i, lease := range leases {
		if want := epoch.Floor() + 1; lease.Token != want {
			t.Errorf("grant %d has token %d, want %d, the first of epoch %d", i, lease.Token, want, epoch)
		}
	}
	events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
	if err != nil || len(events) != grants {
		t.Fatalf("the feed has %d events, %v, want %d", len(events), err, grants)
	}
	for _, e := range events {
		if floor := runstore.Position(epoch.Floor()); e.Position <= floor {
			t.Errorf("the event of %q is at position %d, want one above %d, the epoch's floor", e.Run, e.Position, floor)
		}
	}
}

// TestRefusedBatchInAGroup commits a batch whose guards do not hold. It fails alone: the other
// batches of the shared transaction are committed.
func TestRefusedBatchInAGroup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	held(t, s, runstore.MaxTTL)
	errs := grouped(t, s, path, 20, func(i int) runstore.Batch {
		b := runstore.NewBatch("run", runstore.AtVersion(runstore.RecordKey(fmt.Sprint("key-", i)), runstore.Version(i%2)))
		b.Append("test", []byte{byte(i)})
		return b
	})
	for i, err := range errs {
		if want := [...]error{nil, runstore.ErrConflict}[i%2]; !errors.Is(err, want) {
			t.Errorf("batch %d: got %v, want %v", i, err, want)
		}
	}
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || run.LastSeq != 10 {
		t.Errorf("got last seq %d, %v, want 10", run.LastSeq, err)
	}
}

// TestEngineFailureInAGroup lets the engine fail in the middle of a batch's writes. The shared
// transaction is rolled back, and its other batches are then committed without the failed one.
func TestEngineFailureInAGroup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	held(t, s, runstore.MaxTTL)
	exec(t, path, `CREATE TRIGGER fault BEFORE INSERT ON events WHEN NEW.kind = 'fault' BEGIN SELECT RAISE(ABORT, 'injected'); END`)
	errs := grouped(t, s, path, 20, func(i int) runstore.Batch {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Put("record", []byte{byte(i)})
		b.Append("test", nil)
		if i%5 == 0 {
			b.Append("fault", nil)
		}
		return b
	})
	for i, err := range errs {
		if i%5 != 0 {
			if err != nil {
				t.Errorf("batch %d: %v", i, err)
			}
			continue
		}
		if got := runstore.OutcomeOf(err); got != runstore.NotApplied {
			t.Errorf("batch %d: got %v, which means %v, want an error that means not applied", i, err, got)
		}
	}
	records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
	if err != nil || records[0].Version != 16 {
		t.Errorf("got %+v, %v, want the record at version 16", records, err)
	}
	events, err := s.ReadJournal(t.Context(), "run", 1, runstore.MaxPage)
	if err != nil || len(events) != 16 {
		t.Errorf("got %d events, %v, want 16", len(events), err)
	}
	for i, e := range events {
		if e.Kind != "test" || e.Seq != runstore.Seq(i+1) {
			t.Errorf("event %d is %q with seq %d", i, e.Kind, e.Seq)
		}
	}
}

// TestGivingUpInAQueue lets callers give up while another process holds the write lock, or the lock of
// the watermark. Nothing of their operations is written, and the other commits proceed, whichever
// operation had the lead.
func TestGivingUpInAQueue(t *testing.T) {
	t.Parallel()
	for name, stall := range map[string]func(path string) (resume func()){
		"write lock": func(path string) func() { return embedded.StallSQLite(t, path) },
		"watermark": func(path string) func() {
			unlock, ok := sqlite.LockWatermark(t, path)
			if !ok {
				t.Fatal("the watermark is locked")
			}
			return unlock
		},
	} {
		for _, group := range []int{1, 512} {
			t.Run(fmt.Sprintf("%s, group %d", name, group), func(t *testing.T) { testGivingUp(t, group, stall) })
		}
	}
}

func testGivingUp(t *testing.T, group int, stall func(path string) (resume func())) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, err := sqlite.Open(t.Context(), path, &sqlite.Options{MaxGroup: group})
	if err != nil {
		t.Fatal(err)
	}
	held(t, s, runstore.MaxTTL)
	resume := stall(path)
	const n = 20
	errs := make([]error, n)
	var wg sync.WaitGroup
	impatient, giveUp := context.WithCancel(t.Context())
	var gaveUp sync.WaitGroup
	for i := range n {
		commit := func(ctx context.Context) {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("test", []byte{byte(i)})
			_, errs[i] = s.Commit(ctx, b)
		}
		if i%3 == 0 {
			gaveUp.Go(func() { commit(impatient) })
		} else {
			wg.Go(func() { commit(t.Context()) })
		}
		if i == 0 {
			awaitQueued(t, s, 1) // this one has the lead
		}
	}
	awaitQueued(t, s, n)
	giveUp()
	gaveUp.Wait() // they return though the lock is still held
	if got, want := sqlite.Queued(s), n-(n+2)/3; got != want {
		t.Errorf("%d operations are queued, want the %d whose callers wait", got, want)
	}
	resume()
	wg.Wait()
	applied := 0
	for i, err := range errs {
		if i%3 != 0 {
			applied++
			if err != nil {
				t.Errorf("commit %d: %v", i, err)
			}
		} else if !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("commit %d: got %v, want ErrUnavailable and context.Canceled", i, err)
		}
	}
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || run.LastSeq != runstore.Seq(applied) {
		t.Errorf("got last seq %d, %v, want %d", run.LastSeq, err, applied)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestWithdrawnOperationIsNotClaimed lets a leader come between the two steps of a caller that gives up: it withdraws
// its operation, and then removes it from the queue.
func TestWithdrawnOperationIsNotClaimed(t *testing.T) {
	t.Parallel()
	for _, withdrawn := range []bool{false, true} {
		if got := sqlite.Claims(withdrawn); got == withdrawn {
			t.Errorf("an operation is claimed: %t, withdrawn: %t", got, withdrawn)
		}
	}
}

// TestFailedGroupBeforeALongQueue lets a full group fail while more operations wait. Its leader runs again before
// these, and its caller returns once its event is there.
func TestFailedGroupBeforeALongQueue(t *testing.T) {
	t.Parallel()
	d, path := newDisk(t), filepath.Join(t.TempDir(), "tape.db")
	t.Cleanup(func() { d.set(nil) })
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost(), MaxGroup: 2}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	held(t, s, runstore.MaxTTL)
	resume := embedded.StallSQLite(t, path)
	var wg sync.WaitGroup
	commit := func(name string) {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append(name, nil)
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		events, err := s.ReadJournal(t.Context(), "run", 1, 10)
		if err != nil || !slices.ContainsFunc(events, func(e runstore.Event) bool { return e.Kind == name }) {
			t.Errorf("%s was applied, but the run has %d events without it, %v", name, len(events), err)
		}
	}
	returned := make(chan struct{})
	for i, run := range []func(){
		func() { defer close(returned); commit("the leader's") },
		func() { commit("the second of its group") },
		func() { commit("a third") },
		func() { commit("a fourth") },
		func() { // all that is behind it waits until the leader has looked
			if err := sqlite.Write(t.Context(), s, func() { <-returned }); err != nil {
				t.Error(err)
			}
		},
	} {
		wg.Go(run)
		awaitQueued(t, s, i+1)
	}
	d.set(nth(1, "write", walFile, fault{code: sqlite3.SQLITE_FULL}))
	resume()
	wg.Wait()
	if d.set(nil) != 1 {
		t.Error("no commit met the fault")
	}
	if n := eventsOf(t, s); n != 4 {
		t.Errorf("got %d events, want 4", n)
	}
}

// TestStrictLeaseOfACommitThatJoins lets a commit join a transaction that began before the commit's
// strict lease expired. The commit is judged at the time when it joins, and refused (I3).
func TestStrictLeaseOfACommitThatJoins(t *testing.T) {
	t.Parallel()
	host := embedded.NewHost()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), host)
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute, Strict: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	err = sqlite.Write(t.Context(), s, func() {
		host.Advance(2 * time.Minute)
		go func() {
			b := runstore.NewBatch("run", created.Lease.Fence())
			b.Append("late", nil)
			_, err := s.Commit(context.Background(), b)
			late <- err
		}()
		awaitQueued(t, s, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-late; !errors.Is(err, runstore.ErrLeaseExpired) {
		t.Errorf("a commit under an expired strict lease: %v, want %v", err, runstore.ErrLeaseExpired)
	}
}

// TestGroupIsSyncedOnce commits the batches of 20 callers in one transaction, which syncs the log once.
func TestGroupIsSyncedOnce(t *testing.T) {
	t.Parallel()
	d, s, path, lease := failing(t)
	if err := appendEvent(t, s, lease); err != nil {
		t.Fatal(err)
	}
	syncs := 0
	d.set(func(call, file string) fault {
		if call == "sync" && file == walFile {
			syncs++
		}
		return fault{}
	})
	errs := grouped(t, s, path, 20, func(int) runstore.Batch {
		b := runstore.NewBatch("run", lease.Fence())
		b.Append("test", nil)
		return b
	})
	d.set(nil)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if syncs != 1 {
		t.Errorf("a group of 20 commits synced the log %d times, want 1", syncs)
	}
}
