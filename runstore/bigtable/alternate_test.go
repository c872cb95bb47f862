package bigtable_test

import (
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// Handles that remember what the log of the feed has of a run append to it in turns, and one of
// them writes the positions back to the run's row, or none does. Each event is in the feed once.
func TestHandlesAppendInTurns(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{false, true} {
		table := newTable(t)
		s, other := openBare(t, table), openBare(t, table)
		hold(t, s, "run")
		hold(t, s, "another")
		n := 0
		for round := range 4 {
			for _, h := range []*bigtable.Store{s, other, other, s, s} {
				n++
				commit(t, h, signal("run", fmt.Sprint(n)))
				bigtable.PublishPending(t.Context(), h)
			}
			if recorded {
				n++
				commit(t, other, signal("run", fmt.Sprint(n)))
				commit(t, other, signal("another", fmt.Sprint(round)))
				if err := bigtable.Publish(t.Context(), other, "run", "another"); err != nil {
					t.Fatal(err)
				}
			}
		}
		seen := map[runstore.RunID]runstore.Seq{}
		for _, e := range whole(t, s, 0, 100, nil) {
			if seen[e.Run]++; e.Seq != seen[e.Run] {
				t.Errorf("told %v: event %d of %q comes as number %d", recorded, e.Seq, e.Run, seen[e.Run])
			}
		}
		if int(seen["run"]) != n {
			t.Errorf("told %v: the feed has %d events of the run, want %d", recorded, seen["run"], n)
		}
	}
}
