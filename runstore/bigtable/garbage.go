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

// garbageQueue collects the keys of rows that nothing names any more, and deletes them in the
// background, many in one request. What a crash or Close leaves is found again: entries
// of indexes by the scans that meet them, the rest by way of the run's mark.
type garbageQueue struct {
	store   *engine
	mu      sync.Mutex
	orphans []string      // of rows that no head can name
	ready   []garbageRows // of rows that heads do not name any more
	waiting []garbageRows // entries of indexes and segments of the feed, the oldest first
	wake    chan struct{}
	done    chan struct{}
}

// garbageRows is rows that a head, as it was at a time, does not name any more.
type garbageRows struct {
	observation
	since localclock.Reading // when it began to age
	keys  []string
	moves []entryMove // entries of runnable runs
}

// observation says when a run's head was as it was found, in which epoch. A process that is suspended before it
// deletes what that head does not name may wake after a failover, or a restore, to a head that does.
type observation struct {
	at    localclock.Reading // zero: it does not matter
	epoch int64
}

// observationTTL is how long after it was found garbage is deleted without another look at the epoch: several
// times wasteEvery.
const observationTTL = 2 * time.Second

// observe returns the present moment.
func (s *engine) observe() observation {
	x := observation{at: s.clock.local.Read()}
	if now := s.currentEpoch(); now != nil {
		x.epoch = now.Epoch
	}
	return x
}

// isStale reports whether the process may have been suspended since. Where its monotonic clock stands
// still meanwhile, the wall clock tells.
func (s *engine) isStale(x observation) bool {
	now := s.clock.local.Read()
	return !x.at.IsZero() && (now.Sub(x.at) > observationTTL || now.Wall().Sub(x.at.Wall()) > observationTTL)
}

// ofCurrentEpoch returns the garbage that is of the store's epoch, and leaves garbage of earlier epochs to
// the passes. It reads the epoch if the process may have been suspended since the garbage was found, and
// again if it may have been suspended during that read.
func (s *engine) ofCurrentEpoch(ctx context.Context, all []garbageRows) ([]garbageRows, error) {
	for range maxEpochReads {
		if !slices.ContainsFunc(all, func(g garbageRows) bool { return s.isStale(g.observation) }) {
			return all, nil
		}
		began := s.clock.local.Read()
		now, err := s.readEpochs(ctx)
		all = slices.DeleteFunc(all, func(g garbageRows) bool {
			return !g.at.IsZero() && (err != nil && s.isStale(g.observation) || err == nil && g.epoch < now.current())
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
	return nil, outcome.Unavailable(errSlowEpochReads)
}

// maxEpochReads bounds the reads of the epoch before a deletion: a server that takes longer than trustFor for
// each read would keep ofThisEpoch for ever.
const maxEpochReads = 3

var errSlowEpochReads = errors.New("bigtable: each read of the epoch took too long to delete rows after it")

// maxGarbage bounds what is kept in mind.
const maxGarbage = 100_000

// garbageDelay is how long deletions wait for company.
const garbageDelay = 200 * time.Millisecond

// A scan that is under way may still need an entry that became untrue: where it has seen a
// record's new place it may rely on finding it by its old one. Likewise a reader of the feed may
// still look for the segments of a block that was compacted. A scan takes less time than they stay.
const (
	maxScanTime = 10 * time.Second
	readerGrace = 2 * maxScanTime
)

// deleteLater takes over the rows that nothing names after a change that was made.
func (w *garbageQueue) deleteLater(when observation, keys []string) {
	var entries, others []string
	for _, k := range keys {
		if k[:1] == kindIndex || k[:1] == kindLog {
			entries = append(entries, k)
		} else {
			others = append(others, k)
		}
	}
	w.deleteSoon(garbageRows{observation: when, keys: others})
	if len(entries) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) < maxGarbage {
		w.waiting = append(w.waiting, garbageRows{observation: when, keys: entries, since: w.store.clock.local.Read()})
	}
}

// deleteSoon takes over garbage that no reader needs.
func (w *garbageQueue) deleteSoon(g garbageRows) {
	if len(g.keys) == 0 && len(g.moves) == 0 {
		return
	}
	w.mu.Lock()
	if len(w.ready) < maxGarbage { // what is left out is found again
		w.ready = append(w.ready, g)
	}
	w.mu.Unlock()
	w.wakeUp()
}

// expireGrace moves the entries that are old enough to those that are deleted.
func (w *garbageQueue) expireGrace() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.waiting) && w.store.clock.local.Since(w.waiting[n].since) > readerGrace {
		w.ready = append(w.ready, w.waiting[n])
		n++
	}
	w.waiting = slices.Clone(w.waiting[n:])
}

func newGarbageQueue(s *engine) *garbageQueue {
	return &garbageQueue{store: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (w *garbageQueue) addOrphans(keys ...string) {
	if len(keys) == 0 {
		return
	}
	w.mu.Lock()
	if len(w.orphans) < maxGarbage {
		w.orphans = append(w.orphans, keys...)
	}
	w.mu.Unlock()
	w.wakeUp()
}

// wakeUp has the garbage deleted soon.
func (w *garbageQueue) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default: // one is pending already
	}
}

func (w *garbageQueue) close() { close(w.done) }

func (w *garbageQueue) work() {
	ripe := time.NewTicker(readerGrace / 8)
	defer ripe.Stop()
	for {
		select {
		case <-ripe.C:
			w.expireGrace()
		case <-w.wake:
		case <-w.done:
			ctx, cancel := context.WithTimeout(w.store.stopped, w.store.closeGrace)
			defer cancel()
			w.deleteReady(ctx)
			return
		}
		timer := time.NewTimer(garbageDelay)
		select {
		case <-timer.C:
		case <-w.done:
			timer.Stop()
		}
		w.deleteReady(w.store.stopped)
	}
}

// deleteReady deletes what has come together. What cannot be deleted is left to the passes.
func (w *garbageQueue) deleteReady(ctx context.Context) {
	w.mu.Lock()
	keys, found := w.orphans, w.ready
	w.orphans, w.ready = nil, nil
	w.mu.Unlock()
	found, err := w.store.ofCurrentEpoch(ctx, found)
	if err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: the epoch could not be read before a deletion, which is left to the passes", "error", err)
	}
	var moves []entryMove
	for _, g := range found {
		keys, moves = append(keys, g.keys...), append(moves, g.moves...)
	}
	keys = append(keys, w.moveEntries(ctx, moves)...)
	all := make([]mutation, len(keys))
	for i, k := range keys {
		all[i] = remove(k)
	}
	if err := w.store.writeAll(ctx, all); err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: rows that nothing names could not be deleted", "rows", len(keys), "error", err)
	}
}

// moveEntries writes entries at their new places, and returns the keys of those that they replace.
func (w *garbageQueue) moveEntries(ctx context.Context, moves []entryMove) (replaced []string) {
	all := make([]mutation, len(moves))
	for i, m := range moves {
		all[i] = put(m.to.rowKey(), "", nil)
		if m.old != "" {
			replaced = append(replaced, m.old)
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
