package bigtable_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The machine of a handle is suspended during a scan for longer than stale entries are kept: the time of day shows it,
// the monotonic clock does not. The scan returns no entries, because it may have missed some.
func TestSuspendEndsAScan(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	var suspended atomic.Bool
	var ahead atomic.Int64
	s := openBare(t, table, func(o *bigtable.Options) {
		o.Clock = func() time.Time {
			if suspended.Load() { // so that each repeat of the scan meets a suspend
				ahead.Add(int64(time.Hour))
			}
			return time.Now().Add(time.Duration(ahead.Load()))
		}
	})
	hold(t, s, "run")
	b := signal("run", "event")
	b.Put("key", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, b)
	bigtable.SetRetryTimeout(s, time.Second)
	var found []runstore.IndexEntry
	var err error
	if !whilePaused(t, table, "scan index", 0, func() {
		found, err = s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	}, func() { suspended.Store(true) }) {
		t.Fatal("a scan makes no read")
	}
	if !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if len(found) != 0 {
		t.Errorf("got %d entries, want none", len(found))
	}
}
