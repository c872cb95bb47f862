package spanner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// lanes queue the writes of this handle by run, first come, first served. Two transactions on
// one run cannot both be committed as they began; here the second waits in the process, and
// not in Spanner, which would abort one of them.
//
// A lane decides nothing and keeps nobody: a write whose turn does not come within runQueueWait
// goes on without it, because the one before may be waiting for a server that is gone.
type runQueues struct {
	mu   sync.Mutex
	last map[runstore.RunID]chan struct{} // closed when the run's last write has ended
}

// runQueueWait is 2 s: a hundred commits of 20 ms, and less than a fifth of attemptTimeout, after
// which a commit without an answer is sent again.
const runQueueWait = 2 * time.Second

// enter waits for the turn of a write to these runs. In the order of their ids, so that no
// two writes wait for each other. leave ends the turn.
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
		case <-ctx.Done(): // the transaction fails with it
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
