package bigtable

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// waste collects the keys of rows that nothing names any more, and deletes them in the
// background, many in one request. What a crash or Close leaves is found again: entries
// of indexes by the scans that meet them, the rest by way of the run's mark.
type waste struct {
	store *engine
	mu    sync.Mutex
	keys  []string  // of rows that no head can name
	found []garbage // of rows that heads do not name any more
	aging []garbage // entries of indexes and segments of the feed, the oldest first
	more  chan struct{}
	done  chan struct{}
}

// garbage is rows that a head, as it was at a time, does not name any more.
type garbage struct {
	moment
	from  localclock.Reading // when it began to age
	keys  []string
	moves []shift // entries of runnable runs
}

// moment says when a run's head was as it was found, in which epoch. A process that is suspended before it
// deletes what that head does not name may wake after a failover, or a restore, to a head that does.
type moment struct {
	at    localclock.Reading // zero: it does not matter
	epoch int64
}

// trustFor is how long after it was found garbage is deleted without another look at the epoch: several
// times wasteEvery.
const trustFor = 2 * time.Second

// present returns the present moment.
func (s *engine) present() moment {
	x := moment{at: s.clock.here.Read()}
	if now := s.epoch(); now != nil {
		x.epoch = now.Epoch
	}
	return x
}

// isOld reports whether the process may have been suspended since. Where its monotonic clock stands
// still meanwhile, the wall clock tells.
func (s *engine) isOld(x moment) bool {
	now := s.clock.here.Read()
	return !x.at.IsZero() && (now.Sub(x.at) > trustFor || now.Wall().Sub(x.at.Wall()) > trustFor)
}

// ofThisEpoch returns the garbage that is of the store's epoch, and leaves garbage of earlier epochs to
// the passes. It reads the epoch if the process may have been suspended since the garbage was found, and
// again if it may have been suspended during that read.
func (s *engine) ofThisEpoch(ctx context.Context, all []garbage) ([]garbage, error) {
	for range maxLooks {
		if !slices.ContainsFunc(all, func(g garbage) bool { return s.isOld(g.moment) }) {
			return all, nil
		}
		began := s.clock.here.Read()
		now, err := s.epochs(ctx)
		all = slices.DeleteFunc(all, func(g garbage) bool {
			return !g.at.IsZero() && (err != nil && s.isOld(g.moment) || err == nil && g.epoch < now.current())
		})
		if err != nil {
			return all, err
		}
		for i := range all {
			if !all[i].at.IsZero() {
				all[i].at = began
			}
		}
	}
	return nil, outcome.Unavailable(errSlowLooks)
}

// maxLooks bounds the reads of the epoch before a deletion: a server that takes longer than trustFor for
// each read would keep ofThisEpoch for ever.
const maxLooks = 3

var errSlowLooks = errors.New("bigtable: each read of the epoch took too long to delete rows after it")

// maxWaste bounds what is kept in mind.
const maxWaste = 100_000

// wasteEvery is how long deletions wait for company.
const wasteEvery = 200 * time.Millisecond

// A scan that is under way may still need an entry that became untrue: where it has seen a
// record's new place it may rely on finding it by its old one. Likewise a reader of the feed may
// still look for the segments of a block that was compacted. A scan takes less time than they stay.
const (
	scanMost   = 10 * time.Second
	placeGrace = 2 * scanMost
)

// replaced takes over the rows that nothing names after a change that was made.
func (w *waste) replaced(when moment, keys []string) {
	var places, others []string
	for _, k := range keys {
		if k[:1] == kindIndex || k[:1] == kindLog {
			places = append(places, k)
		} else {
			others = append(others, k)
		}
	}
	w.find(garbage{moment: when, keys: others})
	if len(places) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.aging) < maxWaste {
		w.aging = append(w.aging, garbage{moment: when, keys: places, from: w.store.clock.here.Read()})
	}
}

// find takes over garbage that no reader needs.
func (w *waste) find(g garbage) {
	if len(g.keys) == 0 && len(g.moves) == 0 {
		return
	}
	w.mu.Lock()
	if len(w.found) < maxWaste { // what is left out is found again
		w.found = append(w.found, g)
	}
	w.mu.Unlock()
	w.ask()
}

// ripen moves the entries that are old enough to those that are deleted.
func (w *waste) ripen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.aging) && w.store.clock.here.Since(w.aging[n].from) > placeGrace {
		w.found = append(w.found, w.aging[n])
		n++
	}
	w.aging = slices.Clone(w.aging[n:])
}

func newWaste(s *engine) *waste {
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
	w.ask()
}

// ask has the garbage deleted soon.
func (w *waste) ask() {
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
	keys, found := w.keys, w.found
	w.keys, w.found = nil, nil
	w.mu.Unlock()
	found, err := w.store.ofThisEpoch(ctx, found)
	if err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: the epoch could not be read before a deletion, which is left to the passes", "error", err)
	}
	var moves []shift
	for _, g := range found {
		keys, moves = append(keys, g.keys...), append(moves, g.moves...)
	}
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
