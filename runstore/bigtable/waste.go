package bigtable

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// waste collects the keys of rows that nothing names any more, and deletes them in the
// background, many in one request. What a crash or Close leaves is found again: entries
// of indexes by the scans that meet them, the rest by way of the run's mark.
type waste struct {
	store *Store
	mu    sync.Mutex
	keys  []string
	moves []shift // entries of runnable runs
	aging []aged  // entries of indexes and segments of the feed, the oldest first
	more  chan struct{}
	done  chan struct{}
}

// maxWaste bounds what is kept in mind.
const maxWaste = 100_000

// wasteEvery is how long deletions wait for company.
const wasteEvery = 200 * time.Millisecond

// aged are entries that a scan which is under way may still need: one that has seen a
// record's new place may rely on finding it by its old one. Likewise a reader of the feed may
// still look for the segments of a block that was compacted.
type aged struct {
	at   localclock.Reading
	keys []string
}

// A scan takes less time than entries that became untrue stay.
const (
	scanMost   = 10 * time.Second
	placeGrace = 2 * scanMost
)

// made takes over the rows that nothing names after a change that was made.
func (w *waste) made(keys []string) {
	var places, others []string
	for _, k := range keys {
		if k[:1] == kindIndex || k[:1] == kindLog {
			places = append(places, k)
		} else {
			others = append(others, k)
		}
	}
	w.add(others...)
	if len(places) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.aging) < maxWaste {
		w.aging = append(w.aging, aged{w.store.clock.here.Read(), places})
	}
}

// ripen moves the entries that are old enough to those that are deleted.
func (w *waste) ripen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.aging) && w.store.clock.here.Since(w.aging[n].at) > placeGrace {
		w.keys = append(w.keys, w.aging[n].keys...)
		n++
	}
	w.aging = append([]aged(nil), w.aging[n:]...)
}

func newWaste(s *Store) *waste {
	return &waste{store: s, more: make(chan struct{}, 1), done: make(chan struct{})}
}

func (w *waste) add(keys ...string) {
	if len(keys) == 0 {
		return
	}
	w.mu.Lock()
	if len(w.keys) < maxWaste {
		w.keys = append(w.keys, keys...)
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default: // one is pending already
	}
}

// move moves entries of runnable runs. A move that is left out is found again by the next scan.
func (w *waste) move(moves ...shift) {
	if len(moves) == 0 {
		return
	}
	w.mu.Lock()
	if len(w.moves) < maxWaste {
		w.moves = append(w.moves, moves...)
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default: // one is pending already
	}
}

func (w *waste) close() { close(w.done) }

func (w *waste) work() {
	ripe := time.NewTicker(placeGrace / 8)
	defer ripe.Stop()
	for {
		select {
		case <-ripe.C:
			w.ripen()
		case <-w.more:
		case <-w.done:
			ctx, cancel := context.WithTimeout(w.store.stopped, w.store.closeGrace)
			defer cancel()
			w.empty(ctx)
			return
		}
		timer := time.NewTimer(wasteEvery)
		select {
		case <-timer.C:
		case <-w.done:
			timer.Stop()
		}
		w.empty(w.store.stopped)
	}
}

// empty deletes what has come together. What cannot be deleted is left to the passes.
func (w *waste) empty(ctx context.Context) {
	w.mu.Lock()
	keys, moves := w.keys, w.moves
	w.keys, w.moves = nil, nil
	w.mu.Unlock()
	keys = append(keys, w.write(ctx, moves)...)
	all := make([]mutation, len(keys))
	for i, k := range keys {
		all[i] = remove(k)
	}
	if err := w.store.writeAll(ctx, all); err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: rows that nothing names could not be deleted", "rows", len(keys), "error", err)
	}
}

// write writes entries at their new places, and returns the keys of those that they replace.
func (w *waste) write(ctx context.Context, moves []shift) (replaced []string) {
	all := make([]mutation, len(moves))
	for i, m := range moves {
		all[i] = put(m.to.rowKey(), "", nil)
		if m.gone != "" {
			replaced = append(replaced, m.gone)
		}
	}
	if err := w.store.writeAll(ctx, all); err != nil {
		if ctx.Err() == nil {
			w.store.opts.Logger.Warn("bigtable: entries of runnable runs could not be moved", "entries", len(moves), "error", err)
		}
		return nil
	}
	return replaced
}

// closeGrace bounds what is finished when a handle is closed.
const closeGrace = 3 * time.Second
