package sqlite_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestRefusalAfterAFailedCommit checks that a commit of unknown outcome is not recovered once this handle has
// answered a later request definitely.
func TestRefusalAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	d, s, path, lease := failing(t)
	b := runstore.NewBatch("run", lease.Fence())
	b.ID = "batch"
	b.Append("test", nil)
	refused := runstore.NewBatch("run", runstore.AtSeq(77))
	refused.Append("test", nil)
	for n := 1; ; n++ {
		d.set(nth(n, "sync", walFile, fault{code: sqlite3.SQLITE_IOERR_FSYNC}))
		_, err := s.Commit(t.Context(), b)
		if d.set(nil) == 0 {
			if err != nil || n == 1 {
				t.Fatalf("failing sync %d of the commit: got %v, want an earlier one to be the last", n, err)
			}
			return
		}
		if _, err := s.Commit(t.Context(), refused); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
		if n := eventsOf(t, survivor(t, path)); n != 0 {
			t.Errorf("after a kill the next process reads %d events, want 0", n)
		}
	}
}

// strictFixture creates a run under a strict lease of a minute.
func strictFixture(t *testing.T, s *sqlite.Store) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute, Strict: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return created.Lease
}

func commitPayment(ctx context.Context, s *sqlite.Store, f runstore.Fence) error {
	b := runstore.NewBatch("run", f)
	b.ID = "payment"
	b.Append("test", nil)
	_, err := s.Commit(ctx, b)
	return err
}

// TestRefusalByAnotherHandle checks that a write of unknown outcome is not recovered once another handle has
// refused its repeat (I8, I11): the sync of the write fails, the strict lease expires, another handle refuses the
// repeat, all processes are killed. The witness file may have been emptied, as by a process that could not mark it.
func TestRefusalByAnotherHandle(t *testing.T) {
	t.Parallel()
	batch := func(s *sqlite.Store, f runstore.Fence) error { return commitPayment(t.Context(), s, f) }
	for name, write := range map[string]func(s *sqlite.Store, f runstore.Fence) error{
		"batch": batch, "batch without a mark": batch,
		"heartbeat": func(s *sqlite.Store, f runstore.Fence) error {
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: f, TTL: runstore.MaxTTL})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, path, h := newDisk(t), filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
			t.Cleanup(func() { d.set(nil) })
			first, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: h}.OnFileSystem(d.name))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = first.Close() })
			second := openAt(t, path, h)
			lease := strictFixture(t, first)
			d.set(on("sync", walFile, fault{code: sqlite3.SQLITE_IOERR_FSYNC}))
			if err := write(first, lease.Fence()); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("got %v, want ErrUnknownOutcome", err)
			}
			d.set(nil)
			if strings.HasSuffix(name, "without a mark") {
				if err := os.Truncate(path+"-witness", 0); err != nil {
					t.Fatal(err)
				}
			}
			h.Advance(2 * time.Minute)
			if err := write(second, lease.Fence()); !errors.Is(err, runstore.ErrLeaseExpired) {
				t.Fatalf("got %v, want ErrLeaseExpired", err)
			}
			left := survivor(t, path)
			if n := eventsOf(t, left); n != 0 {
				t.Errorf("after a kill the next process reads %d events, want 0", n)
			}
			run, err := left.GetRun(t.Context(), "run")
			if err != nil || !run.ExpiresAt.Equal(lease.ExpiresAt) {
				t.Errorf("after a kill the lease ends at %v, %v; want %v", run.ExpiresAt, err, lease.ExpiresAt)
			}
		})
	}
}

// TestRefusalOfAGroupsMember checks the same for the second operation of a group whose sync failed: another handle
// refuses its repeat, because the first operation is not applied.
func TestRefusalOfAGroupsMember(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first, second func(s *sqlite.Store, lease runstore.Lease) error
		want          error
	}{
		"an event of a new run": {
			func(s *sqlite.Store, _ runstore.Lease) error {
				_, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "new"})
				return err
			},
			func(s *sqlite.Store, _ runstore.Lease) error {
				_, err := s.Commit(t.Context(), withID("new", "payment", 1))
				return err
			},
			runstore.ErrNotFound,
		},
		"a grant after a release": {
			func(s *sqlite.Store, lease runstore.Lease) error {
				_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
				return err
			},
			func(s *sqlite.Store, _ runstore.Lease) error {
				req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "grant"}}
				req.Writes.Append("payment", nil)
				_, err := s.AcquireLease(t.Context(), req)
				return err
			},
			runstore.ErrLeaseHeld,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, s, path, lease := failing(t)
			other := openAt(t, path, embedded.NewHost())
			resume := embedded.StallSQLite(t, path)
			errs := make(chan error, 2)
			for i, op := range []func(*sqlite.Store, runstore.Lease) error{tc.first, tc.second} {
				go func() { errs <- op(s, lease) }()
				awaitQueued(t, s, i+1)
			}
			d.set(on("sync", walFile, fault{code: sqlite3.SQLITE_IOERR_FSYNC}))
			resume()
			for range 2 {
				if err := <-errs; !errors.Is(err, runstore.ErrUnknownOutcome) {
					t.Fatalf("got %v, want ErrUnknownOutcome", err)
				}
			}
			d.set(nil)
			if err := tc.second(other, lease); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			events, err := survivor(t, path).ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
			if err != nil || len(events) != 0 {
				t.Errorf("after a kill the next process reads %d events, %v; want 0", len(events), err)
			}
		})
	}
}

func TestMain(m *testing.M) {
	childprocess.Main(m, func(args []string) error { return stopInSync(args[0], args[1]) })
}

// stopInSync is a child process. It stops while it syncs the commit of an event under the fence of a lease.
func stopInSync(path, lease string) error {
	var l runstore.Lease
	if err := json.Unmarshal([]byte(lease), &l); err != nil {
		return err
	}
	d, err := registerDisk("disk-of-a-child")
	if err != nil {
		return err
	}
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{}.OnFileSystem(d.name))
	if err != nil {
		return err
	}
	d.set(func(call, file string) fault {
		if call == "sync" && file == walFile {
			fmt.Println("syncing")
			<-childprocess.UntilStopped().Done()
			os.Exit(1) // the parent died before it killed this process
		}
		return fault{}
	})
	return commitPayment(context.Background(), s, l.Fence())
}

// TestRefusalAfterAKill checks that a write is not recovered once another process has refused its repeat (I8, I11): a
// process is killed while it syncs the write, the strict lease expires, another process refuses the repeat and is
// killed.
func TestRefusalAfterAKill(t *testing.T) {
	t.Parallel()
	path, h := filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost()
	s := openAt(t, path, h)
	lease := strictFixture(t, s)
	text, err := json.Marshal(lease)
	if err != nil {
		t.Fatal(err)
	}
	child := childprocess.Start(t, nil, path, string(text))
	child.Next(t, "syncing")
	if err := child.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Cmd.Wait() // reports the kill
	if n := eventsOf(t, survivor(t, path)); n != 1 {
		t.Fatalf("the log holds %d events, want the one of the process that was killed", n)
	}
	h.Advance(2 * time.Minute)
	if err := commitPayment(t.Context(), s, lease.Fence()); !errors.Is(err, runstore.ErrLeaseExpired) {
		t.Fatalf("got %v, want ErrLeaseExpired", err)
	}
	if n := eventsOf(t, survivor(t, path)); n != 0 {
		t.Errorf("after a kill the next process reads %d events, want 0", n)
	}
}

// TestBusyCommit reports BUSY to a COMMIT. Its outcome is unknown; nothing of it is left,
// and the log holds the commits that follow.
func TestBusyCommit(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"write", "sync"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			d, s, path, lease := failing(t)
			d.set(nth(1, call, walFile, fault{code: sqlite3.SQLITE_BUSY}))
			err := appendEvent(t, s, lease)
			if met := d.set(nil); met != 1 || !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got %v after %d faults, want ErrUnknownOutcome after 1", err, met)
			}
			if err := appendEvent(t, s, lease); err != nil {
				t.Errorf("the next commit: %v", err)
			}
			for reader, s := range map[string]*sqlite.Store{"this handle": s, "the next process after a kill": survivor(t, path)} {
				if n := eventsOf(t, s); n != 1 {
					t.Errorf("%s reads %d events, want 1", reader, n)
				}
			}
		})
	}
}

// TestMarkOnAFullDisk checks that a commit whose mark does not fit onto the disk is not applied and leaves the witness
// file as it was. The repeat is applied once there is room.
func TestMarkOnAFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openFile(t, path)
	lease := held(t, s, time.Minute)
	before, err := os.ReadFile(path + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	sqlite.FailMarks(s, &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC})
	if err := commitPayment(t.Context(), s, lease.Fence()); !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("a commit: got %v, want ErrUnavailable, not applied", err)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("a heartbeat: got %v, want ErrUnavailable", err)
	}
	after, err := os.ReadFile(path + "-witness")
	if err != nil || string(after) != string(before) {
		t.Errorf("the witness file has changed from %q to %q, %v", before, after, err)
	}
	sqlite.FailMarks(s, nil)
	if err := commitPayment(t.Context(), s, lease.Fence()); err != nil {
		t.Errorf("the repeat with room on the disk: %v", err)
	}
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.LastSeq != 1 {
		t.Errorf("the run has %d events, %v, want 1", run.LastSeq, err)
	}
}

// TestMarkThatFails checks that a witness file which a heartbeat could not mark stays empty until a commit writes it
// again: an opening in between raises the epoch, and none after the commit.
func TestMarkThatFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openFile(t, path)
	lease := held(t, s, time.Minute)
	sqlite.FailMarks(s, syscall.EIO)
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); err != nil {
		t.Fatalf("a heartbeat: %v", err)
	}
	if text, err := os.ReadFile(path + "-witness"); err != nil || len(text) != 0 {
		t.Errorf("after the heartbeat the witness file has %q, %v, want nothing", text, err)
	}
	sqlite.FailMarks(s, nil)
	refused := runstore.NewBatch("run", runstore.AtSeq(77))
	refused.Append("test", nil)
	if _, err := s.Commit(t.Context(), refused); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a refused batch: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFile(t, path)
	if err := commitPayment(t.Context(), s, lease.Fence()); err != nil {
		t.Errorf("under the fence of before: %v", err)
	}
}
