package faultystores

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// runnableStores break the index of runnable runs.
func runnableStores() []faultyStore {
	return []faultyStore{
		{"moved-entry-lost", "A scan that passes over a renewed lease removes the entry of its run.",
			"I9/a-renewed-lease-hides-its-run-until-its-expiry", movedEntryLost},
		{"raise-leaves-runs-behind-old-leases", "After a raise of the epoch a run stays hidden until the lease that the raise ended would have expired.",
			"I9/a-raised-epoch-shows-the-runs-whose-leases-it-ended", raiseLeavesHidden},
		{"moved-beyond-its-expiry", "A scan of all runs, at any time, moves the entry of a renewed lease to the end of time.",
			"I9/no-runnable-run-is-lost-while-scans-move-entries", movedTooFar},
	}
}

// heldRuns returns the runs with a runnable time that the index hides now because of a live lease.
func heldRuns(ctx context.Context, h *handle) (held []runstore.RunID, err error) {
	due, err := h.Handle.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: runstore.MaxPage})
	if err != nil {
		return nil, err
	}
	all, err := h.Handle.ScanIndex(ctx, runstore.IndexQuery{Index: runstore.IndexRuns, Limit: runstore.MaxPage})
	for _, e := range all {
		runnable := slices.ContainsFunc(due, func(d runstore.IndexEntry) bool { return d.Run == e.Run })
		if !runnable && !e.Head.RunnableAt.IsZero() && e.Head.Holder != (runstore.Holder{}) {
			held = append(held, e.Run)
		}
	}
	return held, err
}

// hiding makes scans of the runnable index leave out the runs that hide returns.
func (s *store) hiding(hide func(ctx context.Context, h *handle, q runstore.IndexQuery) (map[runstore.RunID]bool, error)) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		entries, err := h.Handle.ScanIndex(ctx, q)
		if err != nil || q.Index != runstore.IndexRunnable {
			return entries, err
		}
		hidden, err := hide(ctx, h, q)
		return slices.DeleteFunc(entries, func(e runstore.IndexEntry) bool { return hidden[e.Run] }), err
	}
}

// losing makes scans of the runnable index leave out, for good, every run that lost ever returned.
func (s *store) losing(lost func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.RunID, error)) {
	var mu sync.Mutex
	hidden := map[runstore.RunID]bool{}
	s.hiding(func(ctx context.Context, h *handle, q runstore.IndexQuery) (map[runstore.RunID]bool, error) {
		runs, err := lost(ctx, h, q)
		mu.Lock()
		defer mu.Unlock()
		for _, id := range runs {
			hidden[id] = true
		}
		return maps.Clone(hidden), err
	})
}

func movedEntryLost(s *store) {
	s.losing(func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.RunID, error) {
		if !q.Until.IsZero() {
			return nil, nil
		}
		return heldRuns(ctx, h)
	})
}

func movedTooFar(s *store) {
	s.losing(func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.RunID, error) {
		return heldRuns(ctx, h)
	})
}

func raiseLeavesHidden(s *store) {
	var mu sync.Mutex
	hidden := map[runstore.RunID]bool{}
	s.raise = func(ctx context.Context, h *handle, reason string) (runstore.Epoch, error) {
		held, err := heldRuns(ctx, h)
		if err != nil {
			return 0, err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, id := range held {
			hidden[id] = true
		}
		return h.Handle.RaiseEpoch(ctx, reason)
	}
	s.hiding(func(context.Context, *handle, runstore.IndexQuery) (map[runstore.RunID]bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(hidden), nil
	})
}
