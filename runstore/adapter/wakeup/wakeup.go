// Package wakeup delivers wake-ups about single runs between the users of a store within one
// process, for adapters that implement runstore.RunNotifier.
//
// A write of this process names its run when it returns, so it wakes the waiters of that run at
// once, and no others. An adapter that detects writes by other processes calls [Hub.Wake] or
// [Hub.WakeEach].
package wakeup

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
)

// Hub holds the waiters of one store. All hubs of a process with the same key share their waiters.
// The zero Hub wakes nobody.
type Hub struct{ key any }

// Of returns the hub of a store. The comparable key identifies the store within the process: all
// handles of the store use the same key, and no other store uses it.
func Of(key any) Hub { return Hub{key} }

// waiters are the channels that wait for one run, each with the kind of write that wakes it.
type waiters map[chan struct{}]runstore.WakeOn

// stores holds the waiters of all stores, by the keys of their hubs and by run.
var (
	mu          sync.RWMutex
	stores      = map[any]map[runstore.RunID]waiters{}
	waiterCount atomic.Int64 // of waiters, so that a write without any takes no lock
)

// Add returns a channel that receives a value soon after each write to a run of the kind on, until
// ctx ends.
func (h Hub) Add(ctx context.Context, id runstore.RunID, on runstore.WakeOn) <-chan struct{} {
	ch := make(chan struct{}, 1)
	mu.Lock()
	defer mu.Unlock()
	runs := stores[h.key]
	if runs == nil {
		runs = map[runstore.RunID]waiters{}
		stores[h.key] = runs
	}
	if runs[id] == nil {
		runs[id] = waiters{}
	}
	runs[id][ch] = on
	waiterCount.Add(1)
	context.AfterFunc(ctx, func() { h.remove(id, ch) })
	return ch
}

func (h Hub) remove(id runstore.RunID, ch chan struct{}) {
	mu.Lock()
	defer mu.Unlock()
	runs := stores[h.key]
	delete(runs[id], ch)
	if len(runs[id]) == 0 {
		delete(runs, id)
	}
	if len(runs) == 0 {
		delete(stores, h.key)
	}
	waiterCount.Add(-1)
}

// After wakes the waiters of runs, unless the error of a write to them means that nothing was
// applied. Write operations defer it.
func (h Hub) After(err *error, on runstore.WakeOn, runs ...runstore.RunID) {
	if runstore.OutcomeOf(*err) != runstore.NotApplied {
		h.Wake(on, runs...)
	}
}

// KindOf returns the kind of write of a batch.
func KindOf(b runstore.Batch) runstore.WakeOn {
	if b.Release || b.Purge {
		return runstore.OnRelease
	}
	return runstore.OnWrite
}

// AfterBatches is After for a commit.
func (h Hub) AfterBatches(err *error, batches ...runstore.Batch) {
	for _, b := range batches {
		h.After(err, KindOf(b), b.Run())
	}
}

// AfterRaise is After for a raise of the epoch, which ends the grants of all runs.
func (h Hub) AfterRaise(err *error) {
	if runstore.OutcomeOf(*err) != runstore.NotApplied {
		h.WakeEach(func(runstore.RunID, runstore.WakeOn) bool { return true })
	}
}

// Wake wakes the waiters of runs after a write of the kind on. A release counts as a write too.
func (h Hub) Wake(on runstore.WakeOn, runs ...runstore.RunID) {
	if h.key == nil || waiterCount.Load() == 0 {
		return
	}
	mu.RLock()
	defer mu.RUnlock()
	for _, id := range runs {
		for ch, wants := range stores[h.key][id] {
			if wants == runstore.OnWrite || wants == on {
				hint(ch)
			}
		}
	}
}

// WakeEach wakes the waiters for which chosen returns true, given the waiter's run and the kind of
// write that it waits for.
func (h Hub) WakeEach(chosen func(id runstore.RunID, on runstore.WakeOn) bool) {
	if h.key == nil {
		return
	}
	mu.RLock()
	defer mu.RUnlock()
	for id, waiting := range stores[h.key] {
		for ch, on := range waiting {
			if chosen(id, on) {
				hint(ch)
			}
		}
	}
}

// Waiting returns the runs that have waiters.
func (h Hub) Waiting() []runstore.RunID {
	mu.RLock()
	defer mu.RUnlock()
	return slices.Collect(maps.Keys(stores[h.key]))
}

// Take receives a pending wake-up and reports whether there was one. A closed channel has none.
func Take(ch <-chan struct{}) bool {
	select {
	case _, open := <-ch:
		return open
	default:
		return false
	}
}

func hint(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a wake-up is pending already
	}
}
