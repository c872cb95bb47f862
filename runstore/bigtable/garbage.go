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

// garbageQueue deletes rows that no run names any more, in the background, many in one request. A crash loses what is
// queued, and Close the index entries and pages that wait for readers. Scans of queues find the index entries
// again, the orphan scan the marks, and compaction the pages of the feed's log. Large values stay until their run
// is purged, rows of cold records until the run's are rewritten or it is purged.
type garbageQueue struct {
	store      *engine
	wake       wakeSignal
	perRequest int // how many rows one request deletes: maxMutations, except in tests

	mu      sync.Mutex
	ready   []garbageRow // no reader needs them
	waiting []garbageRow // index entries and pages of the feed's log, which readers may still need; the oldest first
}

// garbageRow is a row that a head, as observed, does not name any more, or that no head can name.
type garbageRow struct {
	observation
	since localclock.Reading // when it began to wait for readerGrace
	key   string             // or empty
	to    string             // the key of an entry of a runnable run that is to be written first, or empty
}

// rowsOf returns the rows with the given keys as garbage.
func rowsOf(when observation, keys []string) []garbageRow {
	all := make([]garbageRow, len(keys))
	for i, k := range keys {
		all[i] = garbageRow{observation: when, key: k}
	}
	return all
}

// observation is the time and the epoch at which a run's head was found. A process that is suspended before
// it deletes what that head does not name may wake after a failover, or a restore, to a head that names it.
type observation struct {
	at    localclock.Reading // zero for rows that no head can name
	epoch int64
}

// observationTTL is how long garbage is deleted without another look at the epoch. 2 s: several times
// garbageDelay.
const observationTTL = 2 * time.Second

// observe returns the present time and epoch.
func (s *engine) observe() observation {
	x := observation{at: s.clock.local.Read()}
	if now := s.currentEpoch(); now != nil {
		x.epoch = now.Epoch
	}
	return x
}

// isStale reports whether the process may have been suspended since an observation. The monotonic clock of
// some machines stands still while they are suspended, so isStale reads the wall clock, too.
func (s *engine) isStale(x observation) bool {
	now := s.clock.local.Read()
	return !x.at.IsZero() && (now.Sub(x.at) > observationTTL || now.Wall().Sub(x.at.Wall()) > observationTTL)
}

// ofCurrentEpoch returns the garbage that was observed in the store's epoch. Garbage of earlier epochs stays
// as after a crash, because heads may name it again. It reads the epoch if an observation is stale, and again
// if the process may have been suspended during that read.
func (s *engine) ofCurrentEpoch(ctx context.Context, all []garbageRow) ([]garbageRow, error) {
	for range maxEpochReads {
		if !slices.ContainsFunc(all, func(g garbageRow) bool { return s.isStale(g.observation) }) {
			return all, nil
		}
		began := s.clock.local.Read()
		now, err := s.readEpochs(ctx)
		all = slices.DeleteFunc(all, func(g garbageRow) bool {
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
	all = slices.DeleteFunc(all, func(g garbageRow) bool { return !g.at.IsZero() })
	return all, outcome.Unavailable(errSlowEpochReads)
}

// maxEpochReads bounds the reads of the epoch before a deletion. If the server takes longer than
// observationTTL for each read, ofCurrentEpoch would not return otherwise.
const maxEpochReads = 3

var errSlowEpochReads = errors.New("bigtable: each read of the epoch took too long to delete rows after it")

// maxGarbage bounds each of the queue's lists. What is left out stays as after a crash.
const maxGarbage = 100_000

// garbageDelay is how long a deletion waits for others that share its request.
const garbageDelay = 200 * time.Millisecond

// A scan under way may still need an index entry that has become stale: if it has seen a record's new entry
// out of its range, it relies on the old one. A reader of the feed may still look for the pages of a block
// that was compacted. So such rows stay for readerGrace, twice the longest scan.
const (
	maxScanTime = 10 * time.Second
	readerGrace = 2 * maxScanTime
)

func newGarbageQueue(s *engine) *garbageQueue {
	return &garbageQueue{store: s, wake: newWakeSignal(), perRequest: maxMutations}
}

// deleteLater queues the rows that nothing names after a change: index entries and pages of the feed's log
// wait for readerGrace first.
func (w *garbageQueue) deleteLater(when observation, keys []string) {
	var soon []garbageRow
	w.mu.Lock()
	for _, g := range rowsOf(when, keys) {
		if kind := g.key[:1]; kind != kindIndex && kind != kindLog {
			soon = append(soon, g)
		} else if len(w.waiting) < maxGarbage {
			g.since = w.store.clock.local.Read()
			w.waiting = append(w.waiting, g)
		}
	}
	w.mu.Unlock()
	w.deleteSoon(soon)
}

// deleteOrphans queues rows that no head can name, in any epoch.
func (w *garbageQueue) deleteOrphans(keys ...string) { w.deleteSoon(rowsOf(observation{}, keys)) }

// deleteSoon queues garbage that no reader needs.
func (w *garbageQueue) deleteSoon(all []garbageRow) {
	if len(all) == 0 {
		return
	}
	w.mu.Lock()
	w.ready = append(w.ready, all[:min(len(all), max(maxGarbage-len(w.ready), 0))]...)
	w.mu.Unlock()
	w.wake.send()
}

// expireGrace makes the rows ready that have waited for readerGrace.
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

// work runs until the handle is closed.
func (w *garbageQueue) work() {
	expiry := time.NewTicker(readerGrace / 8)
	defer expiry.Stop()
	for {
		select {
		case <-expiry.C:
			w.expireGrace()
		case <-w.wake:
		case <-w.store.draining:
			ctx, cancel := context.WithTimeout(w.store.stopped, w.store.closeGrace)
			defer cancel()
			w.deleteReady(ctx)
			return
		}
		pause(w.store.draining, garbageDelay)
		w.deleteReady(w.store.stopped)
	}
}

// deleteReady deletes the rows that are ready. What it cannot delete stays as after a crash.
func (w *garbageQueue) deleteReady(ctx context.Context) {
	w.mu.Lock()
	found := w.ready
	w.ready = nil
	w.mu.Unlock()
	found, err := w.store.ofCurrentEpoch(ctx, found)
	if err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: the epoch could not be read before a deletion, which is left out", "error", err)
	}
	found = w.moveEntries(ctx, found)
	if err := w.store.deleteGarbage(ctx, found); err != nil && !errors.Is(err, errRaised) && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: rows that nothing names could not be deleted", "rows", len(found), "error", err)
	}
}

// moveEntries writes the entries that replace rows to delete. It returns the rows to delete.
func (w *garbageQueue) moveEntries(ctx context.Context, found []garbageRow) []garbageRow {
	var all []mutation
	for _, g := range found {
		if g.to != "" {
			all = append(all, put(g.to, "", nil))
		}
	}
	err := w.store.writeAll(ctx, all)
	if err != nil && ctx.Err() == nil {
		w.store.opts.Logger.Warn("bigtable: entries of runnable runs could not be moved", "entries", len(all), "error", err)
	}
	return slices.DeleteFunc(found, func(g garbageRow) bool { return g.key == "" || err != nil && g.to != "" })
}

// deleteGarbage deletes rows, with as few requests as possible. It leaves out garbage of earlier epochs before
// each request and before each repeat of one, because the process may have been suspended since the request
// before. It returns errRaised if it has left out some. Repeats by the client library have no such check.
func (s *engine) deleteGarbage(ctx context.Context, all []garbageRow) error {
	var raised error
	for len(all) > 0 {
		n := batch(len(all), s.garbage.perRequest, maxMessage, func(i int) int { return len(all[i].key) + 16 })
		next := all[:n]
		err := s.retry(ctx, func(bound context.Context) (err error) {
			if next, err = s.ofCurrentEpoch(ctx, next); err != nil || len(next) == 0 {
				return err
			}
			dead := make([]mutation, len(next))
			for i, g := range next {
				dead[i] = remove(g.key)
			}
			return s.applyBulk(bound, dead)
		})
		if err != nil {
			return err
		}
		if len(next) < n {
			raised = errRaised
		}
		all = all[n:]
	}
	return raised
}

// closeGrace bounds the background work that Close waits for.
const closeGrace = 3 * time.Second
