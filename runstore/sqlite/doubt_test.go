package sqlite_test

import (
	"errors"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tapestore/tapestore/runstore"
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
