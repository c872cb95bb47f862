package bigtable

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// sequencer appends the events that this handle commits to the feed's log, in a goroutine of its own, soon
// after their commit. A commit spends nothing on it. The orphan scan finds the events of handles that
// crashed (orphanscan.go).
//
// A round has to know all pages of the log, and which events of each run the log has. The handle remembers
// both (end, fed) while it appends, so a round is one request: an append to the open page (feedpage.go), or
// the creation of a page. If the page turns out to be full, or another handle has created the next page,
// the handle reads the pages that it does not know and composes the round again. A round that knows nothing
// reads the hint, all pages after it, and the rows of the runs: the log has the events up to the high-water
// mark in a run's row (highwater.go), and those that these pages name.
//
// Every few seconds the handle reviews the open page and writes the positions in complete pages back to the
// rows of the runs (writeback.go).
type sequencer struct {
	store   *engine
	pending pendingRuns // runs with events that the feed may not have

	mu          sync.Mutex
	newestEpoch int64                       // the newest epoch of a head that this handle wrote
	heads       map[runstore.RunID]progress // of runs to which this handle committed last

	lock chan struct{} // holds a value while a round is under way; it guards the following
	end  int64         // the number of open, or if that is nil the first number without a page
	// open is the open page that the log ends with, or nil.
	open *feedPage
	// others is how many entries other handles added to open between the last two appends of this one.
	others     int
	lastReview pageState                   // the state of open at the last periodic review
	recent     map[int64]*feedPage         // pages up to end that propagateAll may have to write back
	created    map[int64]bool              // the numbers that this handle has created since the last review
	endReadAt  localclock.Reading          // when the handle last read the end of the log
	fed        map[runstore.RunID]progress // of runs whose last events the pages before end name
	epoch      int64                       // the epoch in which the handle learned the above
	// reached is the highest number in the log of which the handle knows, and checked what it was when
	// the handle last read the epochs.
	reached, checked int64
}

// progress is how far a generation of a run has come: its last event, or the last that the log has.
type progress struct {
	generation, seq int64
	epoch, stamp    int64 // of the run's head
	pagedFrom       int64 // see head.PagedFrom
}

func newSequencer(s *engine) *sequencer {
	return &sequencer{
		store: s, pending: newPendingRuns(math.MaxInt), lock: make(chan struct{}, 1), recent: map[int64]*feedPage{},
		created: map[int64]bool{}, heads: map[runstore.RunID]progress{}, fed: map[runstore.RunID]progress{},
	}
}

// noteCommit queues what follows from an applied change: events for the feed, a purged run for deletion.
func (q *sequencer) noteCommit(id runstore.RunID, e *edit) {
	q.mu.Lock()
	if len(q.heads) >= maxRuns {
		clear(q.heads)
	}
	q.newestEpoch = max(q.newestEpoch, e.head.Epoch)
	q.heads[id] = progress{e.head.Generation, e.head.Seq, e.head.Epoch, e.head.Stamp, e.head.pagedFrom()}
	if e.purged || e.superseded {
		delete(q.heads, id)
	}
	q.mu.Unlock()
	if e.purged {
		q.store.upkeep.toRetire.add(id)
		return
	}
	if e.done.FirstSeq == 0 {
		return
	}
	q.pending.add(id)
}

// The time between two rounds doubles while there is work for each, up to maxPace: the events of many
// commits share one append, and a single commit does not wait for others.
const (
	pace    = 5 * time.Millisecond
	maxPace = 80 * time.Millisecond
)

const (
	// writeBackEvery is how often a handle reviews the open page and writes complete pages back to
	// the rows of the runs. 4 s: as often as the orphan scan, which reads the rows of runs behind
	// the hint.
	writeBackEvery = 4 * time.Second
	// maxRecent bounds the pages that are not written back.
	maxRecent = 64
)

// work runs until the handle is closed.
func (q *sequencer) work() {
	writeBack := time.NewTimer(rand.N(writeBackEvery)) // spreads the write-backs of handles that start together
	defer writeBack.Stop()
	wait, ended := pace, localclock.Reading{}
	for {
		select {
		case <-q.pending.wake:
			if q.store.clock.local.Since(ended) < wait {
				wait = min(2*wait, maxPace)
			} else {
				wait = pace
			}
			q.publishPending(q.store.stopped)
			pause(q.store.draining, wait)
			ended = q.store.clock.local.Read()
		case <-writeBack.C:
			if err := q.writeBack(q.store.stopped); err != nil && q.store.stopped.Err() == nil {
				q.store.opts.Logger.Warn("bigtable: positions in the feed wait to be recorded in the rows of runs", "error", err)
			}
			writeBack.Reset(writeBackEvery)
		case <-q.store.draining:
			ctx, cancel := context.WithTimeout(q.store.stopped, q.store.closeGrace)
			defer cancel()
			q.publishPending(ctx)
			return
		}
	}
}

// pause waits for d, or until done is closed.
func pause(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}

// publishPending publishes the events of the pending runs. After an error they are pending again.
func (q *sequencer) publishPending(ctx context.Context) {
	ids := q.pending.take()
	err := q.publish(ctx, nil, ids)
	if err == nil {
		return
	}
	if ctx.Err() == nil {
		q.store.opts.Logger.Warn("bigtable: events wait for the feed", "runs", len(ids), "error", err)
		pause(q.store.draining, outcome.MaxPause)
	}
	q.pending.add(ids...)
}

// publishOverdue publishes the runs of which the log does not have the given event, up to that event at
// least, and writes their positions back to the rows of the runs.
func (q *sequencer) publishOverdue(ctx context.Context, overdue map[runstore.RunID]int64) error {
	return q.publish(ctx, overdue, slices.Collect(maps.Keys(overdue)))
}

// writeBack writes the positions in complete pages back to the rows of runs.
func (q *sequencer) writeBack(ctx context.Context) error {
	if err := q.acquire(ctx); err != nil {
		return err
	}
	defer func() { <-q.lock }()
	if _, err := q.checkEpoch(ctx); err != nil {
		return err
	}
	if q.open == nil && len(q.recent) == 0 {
		return nil
	}
	void, err := q.propagateAll(ctx, true)
	if len(void) > 0 {
		q.pending.add(void...)
	}
	return err
}

// acquire locks the sequencer for one round.
func (q *sequencer) acquire(ctx context.Context) error {
	select {
	case q.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return outcome.Unavailable(ctx.Err())
	}
}

// publish appends all events of runs to the log. Unless overdue is nil, it reads the log's end first, leaves
// out the runs of which the log has the overdue event, and writes the positions in complete pages, those that
// other handles appended included, back to the rows.
func (q *sequencer) publish(ctx context.Context, overdue map[runstore.RunID]int64, ids []runstore.RunID) error {
	if len(ids) == 0 {
		return nil
	}
	if err := q.acquire(ctx); err != nil {
		return err
	}
	defer func() { <-q.lock }()
	if _, err := q.checkEpoch(ctx); err != nil {
		return err
	}
	writeBack := overdue != nil
	for known := !writeBack && q.end > 0 && !q.isLikelyFull(); ; known = false {
		if !known {
			if err := q.catchUp(ctx); err != nil {
				return err
			}
			if dropped, err := q.checkEpoch(ctx); err != nil {
				return err
			} else if dropped {
				continue
			}
		}
		g, more, appendable, err := q.compose(ctx, ids, overdue)
		if err != nil {
			return err
		}
		if g != nil {
			if there, err := q.extendLog(ctx, g, appendable && !writeBack); err != nil {
				return err
			} else if !there {
				continue
			}
		}
		if writeBack || len(q.recent) >= maxRecent {
			void, err := q.propagateAll(ctx, false)
			if err != nil {
				return err
			}
			for _, id := range void {
				delete(overdue, id) // all of its events are published again
			}
			if ids = append(ids, void...); len(void) > 0 {
				continue
			}
		}
		if !more {
			return nil
		}
	}
}

// extendLog adds the events of g to the log: to the open page, or as the next page, which is open then.
// Unless appendable is set, they get a complete page of their own. extendLog reports false if the log did
// not end as the handle knew, or if it had to close the open page first.
func (q *sequencer) extendLog(ctx context.Context, g *feedPage, appendable bool) (there bool, err error) {
	if q.open != nil && appendable {
		now, has, err := q.store.appendToPage(ctx, q.open, pageEntry{ranges: g.Ranges})
		if err != nil {
			return false, err
		}
		before := q.open
		q.setEnd(now)
		if q.others = 0; has && now.number == before.number {
			q.others = now.entries - before.entries - 1
		}
		return has, nil
	}
	if q.open != nil {
		// Other handles may have appended events that g names, so the caller composes g again.
		now, err := q.store.closePage(ctx, q.open, q.open.number+1)
		if err == nil {
			q.setEnd(now)
		}
		return false, err
	}
	created, err := q.store.createPage(ctx, g, appendable)
	if created {
		q.setEnd(g)
		q.created[g.number] = true
	}
	return created, err
}

// isLikelyFull reports whether other handles have probably filled the open page, if they append as they did
// between the last two appends of this one. Reading the pages is then one request, where an append to a full
// page and the read that follows it are two.
func (q *sequencer) isLikelyFull() bool {
	return q.open != nil && q.open.entries+q.others >= pageEntries
}

// catchUp reads the pages that the handle does not know yet. It reads the hint first if the handle has not
// read the end of the log within writeBackEvery.
func (q *sequencer) catchUp(ctx context.Context) error {
	if q.end == 0 || q.store.clock.local.Since(q.endReadAt) > writeBackEvery {
		hint, err := q.store.hint(ctx)
		if err != nil {
			return err
		}
		if q.end <= hint { // other handles appended meanwhile, or this is the first round
			clear(q.fed)
			last, err := q.store.readPages(ctx, max(hint, 0))
			if err != nil {
				return err
			}
			q.end = max(hint+1, firstPage)
			if g := last[hint]; g != nil {
				q.end = g.next()
			}
		}
		maps.DeleteFunc(q.recent, func(number int64, _ *feedPage) bool { return number <= hint })
	}
	q.open = nil
	end, err := q.store.follow(ctx, q.end, func(g *feedPage) bool {
		q.setEnd(g)
		return true
	})
	if err == nil {
		q.end, q.endReadAt = end, q.store.clock.local.Read()
		q.reached = max(q.reached, end)
	}
	return err
}

// setEnd records the page that the log ends with. If g is nil, what the handle knew of the log is wrong, and
// the next round begins with the hint.
func (q *sequencer) setEnd(g *feedPage) {
	q.open = nil
	if g == nil {
		q.end = 0
		return
	}
	q.record(g)
	if q.end, q.endReadAt = g.next(), q.store.clock.local.Read(); g.isOpen() {
		q.end, q.open = g.number, g
	}
	q.reached = max(q.reached, q.end)
}

// record records a page of the log: a known one, or the one behind all known pages.
func (q *sequencer) record(g *feedPage) {
	q.recent[g.number] = g
	for _, r := range g.Ranges {
		if known, there := q.fed[runstore.RunID(r.Run)]; there && known.generation == r.Generation {
			known.seq = max(known.seq, r.From+r.N-1)
			q.fed[runstore.RunID(r.Run)] = known
		}
	}
}

// mayLack reports whether the log may lack the event due of a run, which is above the high-water mark in the
// run's row.
func (q *sequencer) mayLack(ctx context.Context, id runstore.RunID, h *head, due int64) bool {
	if q.acquire(ctx) != nil {
		return true
	}
	defer func() { <-q.lock }()
	known := q.fed[id]
	return known.generation != h.Generation || known.seq < due || h.isOld(q.store.currentEpoch()) || h.Epoch > q.epoch || len(q.recent) == 0
}

// known returns what the handle remembers of a run's head and of the run's events in the log.
func (q *sequencer) known(id runstore.RunID) (last, fed progress, known bool) {
	q.mu.Lock()
	last, known = q.heads[id]
	q.mu.Unlock()
	fed, there := q.fed[id]
	h := head{Epoch: last.epoch, Stamp: last.stamp}
	return last, fed, known && there && fed.generation == last.generation && last.seq >= fed.seq && !h.isOld(q.store.currentEpoch())
}

// compose returns a page with the events of runs that the log does not have, or nil. more reports whether
// there are further events, and appendable whether those of g may stand in an open page. If overdue is nil,
// this handle has committed the last events of the runs, and compose does not read the rows of runs that the
// handle remembers. Otherwise it leaves out the runs of which the log has the overdue event.
func (q *sequencer) compose(ctx context.Context, ids []runstore.RunID, overdue map[runstore.RunID]int64) (g *feedPage, more, appendable bool, err error) {
	g, appendable = &feedPage{By: rand.Uint64(), number: q.end}, true
	left := int64(maxPageEvents)
	name := func(id runstore.RunID, generation, through, last, pagedFrom int64) {
		n := min(last-through, left)
		appendable = appendable && (n <= 0 || through >= pagedFrom)
		more = more || n < last-through
		if n > 0 {
			left -= n
			g.Ranges = append(g.Ranges, eventRange{[]byte(id), generation, through + 1, n})
		}
	}
	if len(q.fed) >= maxRuns {
		clear(q.fed)
	}
	var keys []string
	for _, id := range ids {
		if last, fed, known := q.known(id); overdue == nil && known {
			name(id, last.generation, fed.seq, last.seq, last.pagedFrom)
		} else {
			keys = append(keys, runKey(id))
		}
	}
	err = q.store.readList(ctx, keys, latest(wholeFamily(familyHead), wholeFamily(familyFeed)), func(r bigtable.Row) error {
		id := runOf(r.Key())
		parsed, err := parseRow(r)
		var x *highWater
		if err == nil {
			x, err = parsed.highWater()
		}
		if err != nil && q.store.skipDamaged(id, err) || err == nil && (!parsed.exists() || parsed.head.isOld(q.store.currentEpoch())) {
			return nil // the orphan scan comes to the run again, or raiseRun adds it
		}
		if err != nil {
			return err
		}
		if q.open != nil && numberOf(x.at) > q.end {
			// The log goes on behind the open page: a program of format 4 created the next
			// one, or the page was closed. What follows these events must not stand before
			// them.
			appendable = false
		}
		through := max(x.through, q.named(id, parsed.head.Generation))
		q.fed[id] = progress{generation: parsed.head.Generation, seq: through}
		if due, there := overdue[id]; there && through >= due {
			return nil // the handle that has committed the later events appends them
		}
		name(id, parsed.head.Generation, through, parsed.head.Seq, parsed.head.pagedFrom())
		return nil
	})
	if err != nil || len(g.Ranges) == 0 {
		return nil, false, false, err
	}
	return g, more, appendable, nil
}

// named returns the last event of a run that a recent page names.
func (q *sequencer) named(id runstore.RunID, generation int64) (through int64) {
	for _, g := range q.recent {
		for _, r := range g.Ranges {
			if r.Generation == generation && string(r.Run) == string(id) {
				through = max(through, r.From+r.N-1)
			}
		}
	}
	return through
}

// createPage creates the row of a page if it is absent, open or complete. It reports whether this request
// created the row.
func (s *engine) createPage(ctx context.Context, g *feedPage, open bool) (created bool, err error) {
	value, _ := json.Marshal(g) // numbers and bytes only: it cannot fail
	set := bigtable.NewMutation()
	set.Set(familyOther, "", timestampOf(g.stamp()), value)
	if open {
		set.Set(familyOther, columnPage, 0, []byte(g.header()))
		g.openState, g.created = &openState{open: true, has: map[uint64]bool{}}, len(g.Ranges)
	}
	created, repeated, err := s.applyIf(ctx, logKey(g.number), "", nil, nil, set)
	if err != nil || created || !repeated {
		return created, err
	}
	found, err := s.readPages(ctx, g.number)
	return err == nil && found[g.number] != nil && found[g.number].By == g.By, err
}
