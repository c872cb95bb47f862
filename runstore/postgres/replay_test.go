package postgres_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestAReplayAllocatesLittle reads a journal of 2,000 events. A replay makes one allocation for
// an event, and some for each page. It runs alone: the count is that of the whole process.
func TestAReplayAllocatesLittle(t *testing.T) {
	s := open(t, database(t))
	lease := hold(t, s, "run")
	const length = 2000
	for n := 0; n < length; {
		batch := runstore.NewBatch("run", lease.Fence())
		for range 500 {
			batch.Append("event", fmt.Appendf(nil, "%100d", n))
			n++
		}
		commit(t, s, batch)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
		if n++; err != nil || int(e.Seq) != n || e.Kind != "event" || e.Owner != lease.Owner {
			t.Fatalf("event %d: %+v, %v", n, e, err)
		}
	}
	runtime.ReadMemStats(&after)
	perEvent := float64(after.Mallocs-before.Mallocs) / length
	t.Logf("%.2f allocations per event", perEvent)
	if n != length || perEvent > 3 {
		t.Errorf("%d events with %.2f allocations each, want %d with 3 at most", n, perEvent, length)
	}
}
