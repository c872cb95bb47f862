package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// failing returns a store on its own failing disk, with a leased run.
func failing(t *testing.T) (d *disk, s *sqlite.Store, path string, lease runstore.Lease) {
	t.Helper()
	d, path = newDisk(t), filepath.Join(t.TempDir(), "tape.db")
	t.Cleanup(func() { d.set(nil) })
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: embedded.NewHost()}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return d, s, path, held(t, s, runstore.MaxTTL)
}

// survivor opens the state that a kill of all processes would leave now: copies of the database
// file and of its write-ahead log.
func survivor(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	return openAt(t, survivorPath(t, path), embedded.NewHost())
}

func survivorPath(t *testing.T, path string) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "tape.db")
	for _, suffix := range []string{"", "-wal", "-witness"} {
		if _, err := os.Stat(path + suffix); err == nil {
			copyFile(t, path+suffix, copied+suffix)
		}
	}
	return copied
}

func eventsOf(t *testing.T, s runstore.RunStore) int {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), "run", 1, runstore.MaxPage)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		if e.Seq != runstore.Seq(i+1) {
			t.Errorf("event %d has seq %d, want %d", i, e.Seq, i+1)
		}
	}
	return len(events)
}

// TestFailedCommit fails each write and each sync of a commit in turn. The error must be true of
// what this handle reads, and of what a kill at that moment leaves.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, call string
		fault      fault
		want       runstore.Outcome
		// recovered reports whether some failure leaves a commit that the next process
		// recovers, so that the outcome cannot be called definite.
		recovered bool
	}{
		{"sync", "sync", fault{code: sqlite3.SQLITE_IOERR_FSYNC}, runstore.Unknown, true},
		{"write-that-was-made", "write", fault{code: sqlite3.SQLITE_IOERR_WRITE, torn: wholly}, runstore.Unknown, true},
		{"write-in-part", "write", fault{code: sqlite3.SQLITE_IOERR_WRITE, torn: 10}, runstore.Unknown, false},
		{"full-disk", "write", fault{code: sqlite3.SQLITE_FULL}, runstore.NotApplied, false},
		{"full-disk-in-a-page", "write", fault{code: sqlite3.SQLITE_FULL, torn: 10}, runstore.NotApplied, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, s, path, lease := failing(t)
			b := runstore.NewBatch("run", lease.Fence())
			b.ID = "batch"
			b.Append("test", nil)
			recovered := 0
			for n := 1; ; n++ {
				d.set(nth(n, tc.call, walFile, tc.fault))
				_, err := s.Commit(t.Context(), b)
				if d.set(nil) == 0 {
					if err != nil || n == 1 {
						t.Fatalf("failing %s %d of the commit: got %v, want an earlier one to be the last", tc.call, n, err)
					}
					break
				}
				if got := runstore.OutcomeOf(err); got != tc.want {
					t.Errorf("%s %d of the commit failed: got %v, which means %v, want an error that means %v", tc.call, n, err, got, tc.want)
				}
				if n := eventsOf(t, s); n != 0 {
					t.Errorf("this handle reads %d events, want 0", n)
				}
				recovered += eventsOf(t, survivor(t, path))
			}
			if got := recovered > 0; got != tc.recovered {
				t.Errorf("a commit that failed was recovered after %d kills, want some: %t", recovered, tc.recovered)
			}
			// What followed the last failure was applied, and is applied once.
			if done, err := s.Commit(t.Context(), b); err != nil || done.FirstSeq != 1 || !done.Replayed {
				t.Errorf("repeat: got %+v, %v, want the first result, of seq 1", done, err)
			}
			if n := eventsOf(t, survivor(t, path)); n != 1 {
				t.Errorf("after the repeat a kill leaves %d events, want 1", n)
			}
		})
	}
}

// TestEachWriteOnAFailingDisk fails the commit of every method that writes. With a full
// disk the outcome is not applied, with a failed sync it is unknown.
func TestEachWriteOnAFailingDisk(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ctx context.Context, s *sqlite.Store, lease runstore.Lease) error{
		"create": func(ctx context.Context, s *sqlite.Store, _ runstore.Lease) error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: "another"})
			return err
		},
		"acquire": func(ctx context.Context, s *sqlite.Store, _ runstore.Lease) error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "other", TTL: runstore.MaxTTL}, Preempt: "test",
			})
			return err
		},
		"renew": func(ctx context.Context, s *sqlite.Store, lease runstore.Lease) error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL})
			return err
		},
		"release": func(ctx context.Context, s *sqlite.Store, lease runstore.Lease) error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
			return err
		},
		"commit of several runs": func(ctx context.Context, s *sqlite.Store, lease runstore.Lease) error {
			b := runstore.NewBatch("run", lease.Fence())
			b.Append("test", nil)
			_, err := s.CommitMulti(ctx, []runstore.Batch{b})
			return err
		},
		"raise epoch": func(ctx context.Context, s *sqlite.Store, _ runstore.Lease) error {
			_, err := s.RaiseEpoch(ctx, "test")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s, _, lease := failing(t)
			before := stateOf(t, s)
			for _, tc := range []struct {
				rule func(call, file string) fault
				want error
			}{
				{on("write", walFile, fault{code: sqlite3.SQLITE_FULL}), runstore.ErrUnavailable},
				{on("sync", walFile, fault{code: sqlite3.SQLITE_IOERR_FSYNC}), runstore.ErrUnknownOutcome},
			} {
				d.set(tc.rule)
				err := write(t.Context(), s, lease)
				if met := d.set(nil); met == 0 || !errors.Is(err, tc.want) {
					t.Errorf("got %v after %d faults, want %v", err, met, tc.want)
				}
				if after := stateOf(t, s); after != before {
					t.Errorf("after %v the handle reads\n%s\nwant\n%s", err, after, before)
				}
			}
			if err := write(t.Context(), s, lease); err != nil {
				t.Errorf("on the sound disk: %v", err)
			}
		})
	}
}

// TestFailedReadInAWrite lets the engine fail while it looks at the run, before anything
// was to be committed.
func TestFailedReadInAWrite(t *testing.T) {
	t.Parallel()
	d, s, path, lease := failing(t)
	other := openAt(t, path, embedded.NewHost())
	for _, file := range []string{mainFile, walFile} {
		// Another handle's commit makes this one read the pages again.
		if _, err := other.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID("other" + file)}); err != nil {
			t.Fatal(err)
		}
		if file == mainFile {
			exec(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
		}
		d.set(on("read", file, fault{code: sqlite3.SQLITE_IOERR_READ}))
		_, readErr := s.GetRun(t.Context(), "run")
		err := appendEvent(t, s, lease)
		if d.set(nil) == 0 {
			t.Errorf("file %q: no read met a fault", file)
		}
		for what, err := range map[string]error{"append": err, "read": readErr} {
			if !errors.Is(err, runstore.ErrUnavailable) {
				t.Errorf("file %q: %s: got %v, want ErrUnavailable", file, what, err)
			}
		}
	}
	if n := eventsOf(t, s); n != 0 {
		t.Errorf("got %d events, want 0", n)
	}
	if err := appendEvent(t, s, lease); err != nil {
		t.Errorf("on the sound disk: %v", err)
	}
}

// TestFailedCommitOfAGroup lets commits share a transaction that fails. If its outcome is unknown,
// every caller gets ErrUnknownOutcome. If it was not applied, each commit is tried alone, because a
// single commit may be the one that did not fit.
func TestFailedCommitOfAGroup(t *testing.T) {
	t.Parallel()
	const n = 20
	for _, tc := range []struct {
		name string
		rule func(call, file string) fault
		want error
		kept int
	}{
		{"sync", on("sync", walFile, fault{code: sqlite3.SQLITE_IOERR_FSYNC}), runstore.ErrUnknownOutcome, 0},
		{"full disk", on("write", walFile, fault{code: sqlite3.SQLITE_FULL}), runstore.ErrUnavailable, 0},
		{"room for less", nth(1, "write", walFile, fault{code: sqlite3.SQLITE_FULL}), nil, n},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, s, path, _ := failing(t)
			d.set(tc.rule)
			errs := grouped(t, s, path, n, func(int) runstore.Batch {
				b := runstore.NewBatch("run", runstore.Unguarded("test"))
				b.Append("test", nil)
				return b
			})
			if d.set(nil) == 0 {
				t.Error("no commit met a fault")
			}
			for i, err := range errs {
				if !errors.Is(err, tc.want) {
					t.Errorf("commit %d: got %v, want %v", i, err, tc.want)
				}
			}
			if got := eventsOf(t, s); got != tc.kept {
				t.Errorf("got %d events, want %d", got, tc.kept)
			}
		})
	}
}

// TestFailedCheckpoint fails every write to the database file, where only checkpoints write. By
// then the commits are in the log: they are acknowledged and stay, even when the store is closed,
// which checkpoints.
func TestFailedCheckpoint(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"write", "sync"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			d, s, path, lease := failing(t)
			d.set(on(call, mainFile, fault{code: sqlite3.SQLITE_IOERR}))
			// 1,000 pages of log are what SQLite checkpoints after by itself.
			value := make([]byte, runstore.MaxRecordValue)
			const commits = 5
			for i := range commits {
				b := runstore.NewBatch("run", lease.Fence())
				b.Append("test", nil)
				b.Put("record", value)
				if _, err := s.Commit(t.Context(), b); err != nil {
					t.Fatalf("commit %d: %v", i, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Logf("close: %v", err) // it may say so
			}
			if d.set(nil) == 0 {
				t.Error("no checkpoint met a fault")
			}
			s = openAt(t, path, embedded.NewHost())
			if n := eventsOf(t, s); n != commits {
				t.Errorf("reopened: got %d events, want %d", n, commits)
			}
			if all := epochs(t, s); len(all) != 0 {
				t.Errorf("reopened: got epochs %+v, want none", all)
			}
		})
	}
}

// TestOpenOnAFailingDisk lets each write and each sync of opening a new file fail in turn.
// Opening fails, and succeeds on a sound disk, with one schema and in the first epoch.
func TestOpenOnAFailingDisk(t *testing.T) {
	t.Parallel()
	for call, f := range map[string]fault{
		"write": {code: sqlite3.SQLITE_FULL, torn: 10}, "sync": {code: sqlite3.SQLITE_IOERR_FSYNC},
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			defer d.set(nil)
			for n := 1; ; n++ {
				path := filepath.Join(t.TempDir(), "tape.db")
				opts := sqlite.Options{Clock: embedded.NewHost()}.OnFileSystem(d.name)
				seen := 0
				d.set(func(gotCall, _ string) fault {
					if gotCall != call {
						return fault{}
					}
					if seen++; seen < n {
						return fault{}
					}
					return f // from the nth on
				})
				s, err := sqlite.Open(t.Context(), path, opts)
				if err == nil {
					// What fails from here on is a checkpoint.
					if err := s.Close(); err != nil {
						t.Logf("close: %v", err)
					}
					if n == 1 {
						t.Fatalf("opening met no fault")
					}
				} else if !errors.Is(err, runstore.ErrUnavailable) {
					t.Errorf("%s %d failed: got %v, want ErrUnavailable", call, n, err)
				}
				d.set(nil)
				again, openErr := sqlite.Open(t.Context(), path, opts)
				if openErr != nil {
					t.Fatalf("after %s %d failed: open again: %v", call, n, openErr)
				}
				if _, err := again.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
					t.Errorf("create: %v", err)
				}
				if all := epochs(t, again); len(all) != 0 {
					t.Errorf("after %s %d failed: got epochs %+v, want none", call, n, all)
				}
				if err := again.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				if err == nil {
					return
				}
			}
		})
	}
}

// stateOf prints what can be read of a store that the writes above may change.
func stateOf(t *testing.T, s *sqlite.Store) string {
	t.Helper()
	var state strings.Builder
	for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime}) {
		if err != nil {
			t.Fatal(err)
		}
		run, err := s.GetRun(t.Context(), e.Run)
		fmt.Fprintf(&state, "%+v %v\n", run, err)
	}
	fmt.Fprintf(&state, "%d events, epochs %+v", eventsOf(t, s), epochs(t, s))
	return state.String()
}

// TestWaitingOnAFailingDisk lets a caller begin to wait while the disk cannot be read. It is refused, and can
// wait once the disk is sound.
func TestWaitingOnAFailingDisk(t *testing.T) {
	t.Parallel()
	d, s, _, _ := failing(t)
	d.set(func(call, _ string) fault {
		if call == "read" {
			return fault{code: sqlite3.SQLITE_IOERR_READ}
		}
		return fault{}
	})
	_, err := s.RunWakeups(t.Context(), "run", runstore.OnWrite)
	if met := d.set(nil); met == 0 || !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v after %d faults, want ErrUnavailable", err, met)
	}
	if _, err := s.RunWakeups(t.Context(), "run", runstore.OnWrite); err != nil {
		t.Errorf("on the sound disk: %v", err)
	}
}

// TestFailedCreationIsForgotten lets the creation of a run fail, whose place in the file another run gets. What
// the handle knew of the first run is forgotten, so that later writes to it do not reach the other run.
func TestFailedCreationIsForgotten(t *testing.T) {
	t.Parallel()
	d, s, _, _ := failing(t)
	spec := runstore.RunSpec{ID: "failed"}
	spec.Writes.Append("test", nil)
	d.set(on("write", walFile, fault{code: sqlite3.SQLITE_FULL}))
	if _, err := s.CreateRun(t.Context(), spec); !errors.Is(err, runstore.ErrUnavailable) {
		t.Fatalf("create on a full disk: got %v, want ErrUnavailable", err)
	}
	d.set(nil)
	spec.ID = "other"
	for _, spec := range []runstore.RunSpec{spec, {ID: "failed"}} {
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	b := runstore.NewBatch("failed", runstore.Unguarded("test"))
	b.Append("test", nil)
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for _, id := range []runstore.RunID{"failed", "other"} {
		if events, err := s.ReadJournal(t.Context(), id, 1, 10); err != nil || len(events) != 1 {
			t.Errorf("%q has %d events, %v, want 1", id, len(events), err)
		}
	}
}

// TestGivingUpAfterAFailedGroup lets callers give up after their transaction failed, while the first of
// its operations runs again. Nothing of theirs is written, and a caller that goes on succeeds.
func TestGivingUpAfterAFailedGroup(t *testing.T) {
	t.Parallel()
	d, s, path, _ := failing(t)
	resume := embedded.StallSQLite(t, path)
	var wg sync.WaitGroup
	again, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	attempts := 0
	wg.Go(func() {
		defer close(ended)
		err := sqlite.Write(t.Context(), s, func() {
			if attempts++; attempts == 2 {
				close(again)
				<-goOn
			}
		})
		if err != nil {
			t.Errorf("the first operation: %v", err)
		}
	})
	awaitQueued(t, s, 1)
	ctx, giveUp := context.WithCancel(t.Context())
	commit := func(ctx context.Context) error {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("test", nil)
		_, err := s.Commit(ctx, b)
		return err
	}
	const n = 5
	errs := make([]error, n)
	var gaveUp sync.WaitGroup
	for i := range n {
		gaveUp.Go(func() { errs[i] = commit(ctx) })
	}
	var patient error
	wg.Go(func() { patient = commit(t.Context()) })
	awaitQueued(t, s, n+2)
	d.set(nth(1, "write", walFile, fault{code: sqlite3.SQLITE_FULL}))
	resume()
	select {
	case <-again:
	case <-ended:
		t.Error("the first operation did not run again")
	}
	giveUp()
	gaveUp.Wait() // they return though the first operation's transaction goes on
	for i, err := range errs {
		if !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("commit %d: got %v, want ErrUnavailable and context.Canceled", i, err)
		}
	}
	close(goOn)
	wg.Wait()
	if d.set(nil) != 1 {
		t.Error("no commit met the fault")
	}
	if patient != nil {
		t.Errorf("the commit whose caller waited: %v", patient)
	}
	if got := eventsOf(t, s); got != 1 {
		t.Errorf("got %d events, want 1", got)
	}
}
