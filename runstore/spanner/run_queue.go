package spanner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// runQueues is a ticket lock for each run: the writes of this handle to one run take turns, first
// come, first served. Of two concurrent transactions on one run Spanner would abort one, so the
// second waits in this process instead.
//
// Correctness does not depend on the queue, and the queue blocks no write for long: after
// runQueueWait a write proceeds without its turn, because the write before it may be waiting for a
// server that is gone.
type runQueues struct {
	mu   sync.Mutex
	last map[runstore.RunID]chan struct{} // of the run's newest write; closed when that write has ended
}

// runQueueWait is 2 s: long enough for a hundred commits of 20 ms, and less than a fifth of
// attemptTimeout, after which a commit without a reply is sent again.
const runQueueWait = 2 * time.Second

// enter waits for the turn of a write to these runs, for at most wait, and queues further writes
// behind it. Runs are entered in the order of their ids, so that no two writes wait for each other.
// The caller must call leave when the write has ended.
func (l *runQueues) enter(ctx context.Context, wait time.Duration, runs ...runstore.RunID) (leave func()) {
	slices.Sort(runs)
	runs = slices.Compact(runs)
	ended := make(chan struct{})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	late := false
	for _, id := range runs {
		l.mu.Lock()
		before := l.last[id]
		if l.last == nil {
			l.last = map[runstore.RunID]chan struct{}{}
		}
		l.last[id] = ended
		l.mu.Unlock()
		if before == nil || late {
			continue
		}
		select {
		case <-before:
		case <-timer.C:
			late = true
		case <-ctx.Done(): // the transaction will fail with ctx's error
			late = true
		}
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, id := range runs {
			if l.last[id] == ended {
				delete(l.last, id)
			}
		}
		close(ended)
	}
}
