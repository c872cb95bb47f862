package bigtable

import (
	"maps"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// wakeSignal wakes a goroutine that receives from it. Signals that are sent before the goroutine
// receives are one.
type wakeSignal chan struct{}

func newWakeSignal() wakeSignal { return make(wakeSignal, 1) }

// send wakes the goroutine. It never blocks.
func (s wakeSignal) send() {
	select {
	case s <- struct{}{}:
	default: // a signal is pending already
	}
}

// pendingRuns is the set of runs that a goroutine still has to work on.
type pendingRuns struct {
	wake wakeSignal // sent after each add
	most int        // how many runs it has at most

	mu  sync.Mutex
	ids map[runstore.RunID]bool
}

func newPendingRuns(most int) pendingRuns {
	return pendingRuns{wake: newWakeSignal(), most: most, ids: map[runstore.RunID]bool{}}
}

// add adds runs to the set while it has room, and wakes the goroutine.
func (p *pendingRuns) add(ids ...runstore.RunID) {
	p.mu.Lock()
	for _, id := range ids {
		if len(p.ids) < p.most {
			p.ids[id] = true
		}
	}
	p.mu.Unlock()
	p.wake.send()
}

// take empties the set and returns the runs that it had.
func (p *pendingRuns) take() []runstore.RunID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := slices.Collect(maps.Keys(p.ids))
	clear(p.ids)
	return ids
}

// next removes one run from the set and returns it.
func (p *pendingRuns) next() (id runstore.RunID, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id = range p.ids {
		delete(p.ids, id)
		return id, true
	}
	return "", false
}
