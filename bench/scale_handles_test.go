package bench

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// stalling is a store whose first commit takes a while.
type stalling struct {
	runstore.RunStore
	stall   time.Duration
	commits runstore.Seq
}

func (s *stalling) Commit(context.Context, runstore.Batch) (runstore.Committed, error) {
	if s.commits++; s.commits == 1 {
		time.Sleep(s.stall)
	}
	return runstore.Committed{FirstSeq: s.commits, LastSeq: s.commits}, nil
}

// TestStallsCountForEveryDueCommit checks that a commit which takes as long as several intervals
// counts for all commits that were due meanwhile.
func TestStallsCountForEveryDueCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &paced{
			every: 20 * time.Millisecond, leases: make([]runstore.Lease, 1), acked: []map[runstore.Seq]time.Time{{}},
			writers: &connection{all: []runstore.RunStore{&stalling{stall: 70 * time.Millisecond}}},
		}
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- p.write(t.Context(), 0, stop) }()
		time.Sleep(90 * time.Millisecond) // of the bubble's clock: commits are due at 0, 20, 40, 60 and 80 ms
		close(stop)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond, 70 * time.Millisecond}
		if got := slices.Sorted(slices.Values(p.latencies)); p.made != 2 || p.missed != 3 || !slices.Equal(got, want) {
			t.Errorf("%d commits, %d missed, latencies %v; want 2, 3 and %v", p.made, p.missed, got, want)
		}
	})
}
