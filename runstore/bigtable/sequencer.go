package bigtable

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// sequencer brings the events that this handle commits into the feed, in the
// background, soon after their commit: a commit spends nothing on it. Its goroutine does nothing else.
// The passes over the marks find the events of handles that crashed; see sweep.go.
//
// A round needs to know all segments of the log, and of each run which events it has. The
// handle remembers both (end, fed) while it appends. So a round is one request: an append to the page
// that ends the log (page.go), or the creation of a page. If the page turns out to be full, or another
// handle has created the next segment, the handle reads the segments that it does not know and composes
// the round again. A round that knows nothing reads how far the segments are told to the rows of the runs (the
// hint), all segments after that, and then the runs' rows: the log has the events that a run's row
// says, and those that these segments name.
//
// Every few seconds the handle reviews the page that ends the log, and writes what complete segments name
// back to the rows (tell.go).
type sequencer struct {
	store *engine
	mu    sync.Mutex
	dirty map[runstore.RunID]bool     // runs with events that the feed may not have
	ahead int64                       // the newest epoch of a head that this handle wrote
	heads map[runstore.RunID]progress // of runs that this handle committed to last
	kick  chan struct{}
	done  chan struct{}

	turn chan struct{} // holds a value while a round is under way
	// The following belong to the round.
	end    int64                       // the number of last, or if that is nil the first number without a segment
	last   *segment                    // the open page that the log ends with, or nil
	seen   seen                        // the state of last at the last review
	recent map[int64]*segment          // segments up to end that tellAll may have to write back
	mine   map[int64]bool              // the numbers that this handle has created since the last review
	read   localclock.Reading          // when the handle met the end of the log last
	fed    map[runstore.RunID]progress // of runs whose last events the segments before end name
	epoch  int64                       // the epoch in which the handle learned the above
}

// progress is how far a life of a run has come: its last event, or the last that the log has.
type progress struct {
	life, seq    int64
	epoch, stamp int64 // of the run's head
	paged        int64 // the run's events up to this one must not stand in pages
}

func newSequencer(s *engine) *sequencer {
	return &sequencer{
		store: s, dirty: map[runstore.RunID]bool{}, kick: make(chan struct{}, 1),
		done: make(chan struct{}), turn: make(chan struct{}, 1), recent: map[int64]*segment{}, mine: map[int64]bool{}, heads: map[runstore.RunID]progress{}, fed: map[runstore.RunID]progress{},
	}
}

// committed hears of every change that was made.
func (q *sequencer) committed(id runstore.RunID, e *edit) {
	q.mu.Lock()
	if len(q.heads) >= maxRuns {
		clear(q.heads)
	}
	q.ahead = max(q.ahead, e.head.Epoch)
	q.heads[id] = progress{e.head.Life, e.head.Seq, e.head.Epoch, e.head.Stamp, e.head.pagedFrom()}
	if e.purged || e.moved {
		delete(q.heads, id)
	}
	q.mu.Unlock()
	if e.purged {
		q.store.later(func(ctx context.Context) error { return q.store.visit(ctx, id) })
		return
	}
	if e.head.unsealed() >= sealAt {
		q.store.upkeep.add(id)
	}
	if e.done.FirstSeq == 0 {
		return
	}
	q.add(id)
}

// add makes the next round bring the events of a run into the feed.
func (q *sequencer) add(id runstore.RunID) {
	q.mu.Lock()
	q.dirty[id] = true
	q.mu.Unlock()
	q.wake()
}

func (q *sequencer) wake() {
	select {
	case q.kick <- struct{}{}:
	default: // one is pending already
	}
}

func (q *sequencer) close() { close(q.done) }

// The time between two rounds grows while there is work for each: the events of many
// commits share one, and a single commit need not wait for others.
const (
	pace    = 5 * time.Millisecond
	maxPace = 80 * time.Millisecond
)

const (
	// tellEvery is how often a handle reviews the log's last page and writes complete segments back to
	// the rows of the runs. 4 s: as often as the passes, which read the rows of runs behind the hint.
	tellEvery = 4 * time.Second
	// maxRecent bounds the segments that are not told.
	maxRecent = 64
)

func (q *sequencer) work() {
	tell := time.NewTimer(rand.N(tellEvery)) // spreads the write-backs of handles that start together
	defer tell.Stop()
	wait, ended := pace, localclock.Reading{}
	for {
		select {
		case <-q.kick:
			if q.store.clock.here.Since(ended) < wait {
				wait = min(2*wait, maxPace)
			} else {
				wait = pace
			}
			q.rounds(q.store.stopped)
			pause(q.done, wait)
			ended = q.store.clock.here.Read()
		case <-tell.C:
			if err := q.tell(q.store.stopped); err != nil && q.store.stopped.Err() == nil {
				q.store.opts.Logger.Warn("bigtable: runs wait to be told what the feed has", "error", err)
			}
			tell.Reset(tellEvery)
		case <-q.done:
			ctx, cancel := context.WithTimeout(q.store.stopped, q.store.closeGrace)
			defer cancel()
			q.rounds(ctx)
			return
		}
	}
}

// pause waits for d, or until done is closed.
func pause(done chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}

// rounds works off what is dirty now.
func (q *sequencer) rounds(ctx context.Context) {
	q.mu.Lock()
	dirty := q.dirty
	q.dirty = map[runstore.RunID]bool{}
	q.mu.Unlock()
	err := q.bring(ctx, false, slices.Collect(maps.Keys(dirty))...)
	if err == nil {
		return
	}
	if ctx.Err() == nil {
		q.store.opts.Logger.Warn("bigtable: events wait for the feed", "runs", len(dirty), "error", err)
	}
	q.mu.Lock() // and again, later
	maps.Copy(q.dirty, dirty)
	q.mu.Unlock()
	if ctx.Err() == nil {
		pause(q.done, outcome.MaxPause)
		q.wake()
	}
}

// sequence brings all events of runs into the feed, and tells the rows of the runs.
func (q *sequencer) sequence(ctx context.Context, ids ...runstore.RunID) error {
	return q.bring(ctx, true, ids...)
}

// tell tells the rows of runs what the log has.
func (q *sequencer) tell(ctx context.Context) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer func() { <-q.turn }()
	if err := q.notice(ctx); err != nil {
		return err
	}
	if q.last == nil && len(q.recent) == 0 {
		return nil
	}
	void, err := q.tellAll(ctx)
	for _, id := range void {
		q.add(id)
	}
	return err
}

// enter waits for the turn.
func (q *sequencer) enter(ctx context.Context) error {
	select {
	case q.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return outcome.Unavailable(ctx.Err())
	}
}

// bring brings all events of runs into the feed. To tell their rows, it reads the log's end first,
// so that it tells what others appended, too.
func (q *sequencer) bring(ctx context.Context, tell bool, ids ...runstore.RunID) error {
	if len(ids) == 0 {
		return nil
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer func() { <-q.turn }()
	if err := q.notice(ctx); err != nil {
		return err
	}
	for known := !tell && q.end > 0; ; known = false {
		if !known {
			if err := q.catchUp(ctx); err != nil {
				return err
			}
		}
		g, more, paged, err := q.compose(ctx, ids, !tell)
		if err != nil {
			return err
		}
		if g != nil {
			if there, err := q.extend(ctx, g, paged && !tell); err != nil {
				return err
			} else if !there {
				continue
			}
		}
		if tell || len(q.recent) >= maxRecent {
			void, err := q.tellAll(ctx)
			if err != nil {
				return err
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

// extend adds the events of g to the log: to the page that ends the log, or as the next segment, which
// becomes a page. Unless paged is set, they get a complete segment of their own. extend reports false if
// the log did not end as the handle knew, or if it had to close the page first.
func (q *sequencer) extend(ctx context.Context, g *segment, paged bool) (there bool, err error) {
	if q.last != nil && paged {
		now, has, err := q.store.append(ctx, q.last, entry{ranges: g.Ranges})
		if err != nil {
			return false, err
		}
		q.meet(now)
		if has {
			err = q.store.prune(ctx, now)
		}
		return has, err
	}
	if q.last != nil {
		// The page may have received events that g names, so the caller composes g again.
		now, err := q.store.closePage(ctx, q.last, q.last.number+1)
		if err == nil {
			q.meet(now)
		}
		return false, err
	}
	made, err := q.store.create(ctx, g, paged)
	if made {
		q.meet(g)
		q.mine[g.number] = true
	}
	return made, err
}

// catchUp reads the segments that the handle does not know yet, and first the hint unless it has
// met the end of the log lately.
func (q *sequencer) catchUp(ctx context.Context) error {
	if q.end == 0 || q.store.clock.here.Since(q.read) > tellEvery {
		told, err := q.store.hint(ctx)
		if err != nil {
			return err
		}
		if q.end <= told { // others were busy, or this is the first round
			clear(q.fed)
			last, err := q.store.log(ctx, max(told, 0))
			if err != nil {
				return err
			}
			q.end = max(told+1, firstSegment)
			if g := last[told]; g != nil {
				q.end = g.next()
			}
		}
		maps.DeleteFunc(q.recent, func(number int64, _ *segment) bool { return number <= told })
	}
	q.last = nil
	end, err := q.store.follow(ctx, q.end, func(g *segment) bool {
		q.meet(g)
		return true
	})
	if err == nil {
		q.end, q.read = end, q.store.clock.here.Read()
	}
	return err
}

// meet records the segment that the log ends with. If g is nil, what the handle knew of the log is wrong,
// and the next round begins with the hint.
func (q *sequencer) meet(g *segment) {
	q.last = nil
	if g == nil {
		q.end = 0
		return
	}
	q.learn(g)
	if q.end, q.read = g.next(), q.store.clock.here.Read(); g.isOpen() {
		q.end, q.last = g.number, g
	}
}

// learn records a segment of the log: a known one, or the one behind all known ones.
func (q *sequencer) learn(g *segment) {
	q.recent[g.number] = g
	for _, r := range g.Ranges {
		if known, there := q.fed[runstore.RunID(r.Run)]; there && known.life == r.Life {
			known.seq = max(known.seq, r.From+r.N-1)
			q.fed[runstore.RunID(r.Run)] = known
		}
	}
}

// lacks reports whether the log may lack events of a run whose row is not told that it has them.
func (q *sequencer) lacks(ctx context.Context, id runstore.RunID, h *head) bool {
	if q.enter(ctx) != nil {
		return true
	}
	defer func() { <-q.turn }()
	known := q.fed[id]
	return known.life != h.Life || known.seq < h.Seq || h.isOld(q.store.epoch()) || len(q.recent) == 0
}

// remembered returns what the handle knows of a run's head and of its events in the log, without
// a request.
func (q *sequencer) remembered(id runstore.RunID) (last, fed progress, known bool) {
	q.mu.Lock()
	last, known = q.heads[id]
	q.mu.Unlock()
	fed, there := q.fed[id]
	h := head{Epoch: last.epoch, Stamp: last.stamp}
	return last, fed, known && there && fed.life == last.life && last.seq >= fed.seq && !h.isOld(q.store.epoch())
}

// compose returns a segment of events that the log does not have, or nil. more reports whether there are
// further events, and paged whether those of g may stand in a page. If own is set, this handle has
// committed the last events of the runs, and compose does not read the rows of runs that it remembers.
func (q *sequencer) compose(ctx context.Context, ids []runstore.RunID, own bool) (g *segment, more, paged bool, err error) {
	g, paged = &segment{By: rand.Uint64(), number: q.end}, true
	left := int64(maxSegment)
	name := func(id runstore.RunID, life, through, last, pagedFrom int64) {
		n := min(last-through, left)
		paged = paged && (n <= 0 || through >= pagedFrom)
		more = more || n < last-through
		if n > 0 {
			left -= n
			g.Ranges = append(g.Ranges, span{[]byte(id), life, through + 1, n})
		}
	}
	if len(q.fed) >= maxRuns {
		clear(q.fed)
	}
	var keys []string
	for _, id := range ids {
		if last, fed, known := q.remembered(id); own && known {
			name(id, last.life, fed.seq, last.seq, last.paged)
		} else {
			keys = append(keys, runKey(id))
		}
	}
	err = q.store.readList(ctx, keys, latest(wholeFamily(familyHead), wholeFamily(familyFeed)), func(r bigtable.Row) error {
		id := runOf(r.Key())
		parsed, err := parseRow(r)
		var x *fed
		if err == nil {
			x, err = parsed.fed()
		}
		if err != nil && q.store.passOver(id, err) || err == nil && (!parsed.exists() || parsed.head.isOld(q.store.epoch())) {
			return nil // the marks lead the passes to it again, or it is raised first, which adds it
		}
		if err != nil {
			return err
		}
		if q.last != nil && numberOf(x.at) > q.end {
			// The log goes on behind the page: a program of format 4 appended there, or the page was
			// closed. What follows these events must not stand before them.
			paged = false
		}
		through := max(x.through, q.named(id, parsed.head.Life))
		q.fed[id] = progress{life: parsed.head.Life, seq: through}
		name(id, parsed.head.Life, through, parsed.head.Seq, parsed.head.pagedFrom())
		return nil
	})
	if err != nil || len(g.Ranges) == 0 {
		return nil, false, false, err
	}
	return g, more, paged, nil
}

// named returns the last event of a run that a recent segment names.
func (q *sequencer) named(id runstore.RunID, life int64) (through int64) {
	for _, g := range q.recent {
		for _, r := range g.Ranges {
			if r.Life == life && string(r.Run) == string(id) {
				through = max(through, r.From+r.N-1)
			}
		}
	}
	return through
}

// create creates the row of a segment if it is absent: as an open page, or complete. It reports whether
// this request created the row.
func (s *engine) create(ctx context.Context, g *segment, open bool) (made bool, err error) {
	value, _ := json.Marshal(g) // numbers and bytes only: it cannot fail
	set := bigtable.NewMutation()
	set.Set(familyOther, "", numbered(g.stamp()), value)
	if open {
		set.Set(familyOther, columnPage, 0, []byte(g.header()))
		g.appends, g.created = &appends{open: true, has: map[uint64]bool{}}, len(g.Ranges)
	}
	m := bigtable.NewCondMutation(latest(column(familyOther, "")), nil, set)
	for t, doubt := s.tries(), false; ; doubt = true {
		var there bool
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		err := s.table.Apply(bound, logKey(g.number), m, bigtable.GetCondMutationResult(&there))
		cancel()
		if err == nil && !there {
			return true, nil
		}
		if err == nil && doubt {
			found, err := s.log(ctx, g.number)
			if err != nil {
				return false, err
			}
			return found[g.number] != nil && found[g.number].By == g.By, nil
		}
		if err == nil {
			return false, nil
		}
		if ctx.Err() != nil || refusedByServer(err) || !t.More(ctx) {
			return false, outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}
