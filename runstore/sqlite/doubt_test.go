package sqlite_test

import (
	"errors"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

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
