package bigtable

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Replication is asynchronous. After a failover to a cluster that lagged, writes of the history
// that the store has lost may still arrive, as cells beside those of the history that it goes
// on with, or in their place. So the timestamp of a cell is not a time but a stamp, which names
// the epoch of its write: the later epoch wins, in whatever order cells arrive.
//
//  1. The stamp of an epoch is the number below its first segment of the feed (epoch.stamp). It
//     grows with the epochs, and lies above every segment of the epochs before. The first
//     epoch has the stamp 0.
//  2. Raising the epoch writes all cells of a run's row again, under the new stamp and with the
//     head that names it (engine.raiseRun). After that each write has the stamp of the head.
//  3. Readers leave out the cells of a row whose stamp is below that of its head (parseRow).
//     Of cells of one column they see the one with the highest stamp, as ever.
//  4. The cells that record how many of a run's events the feed has have the number of the
//     feed's segment as their timestamp. It is above the stamp of the segment's epoch.
//  5. Segments of the journal have the stamp of the head that they were copied under. The one
//     segment of the feed's log that ends an epoch, a page or one without events, has the stamp of the
//     next. The log behind it, up to the first segment of the next epoch, is not read (engine.beyond).
//
// Without 2 a cell of the lost history would replace the one that it was written over, for both
// are of one epoch, and a record that only the lost history has would look like one that the
// run's last head names. Naming the versions of all records in the head would make every write
// as large as the list of them.
//
// A run that is met before the raise has come to it is raised first. An epoch that a program of
// format 1 raised has no stamp: its cells have the timestamp 0, and no protection.

// stamp returns the stamp of the cells that are written in the epoch.
func (e *epoch) stamp() int64 {
	if e == nil || !e.Closed {
		return 0
	}
	return e.Base - 1
}

// isOld reports whether the head is of an epoch before e.
func (h *head) isOld(e *epoch) bool {
	return e != nil && (h.Epoch < e.Epoch || h.Stamp < e.stamp())
}

// set sets a cell of the run's row under the stamp of the head.
func (e *edit) set(family, column string, value []byte) {
	e.m.Set(family, column, timestampOf(e.head.Stamp), value)
}

// drop deletes a cell of the run's row. The deletion spares cells with later stamps, should it
// arrive late itself.
func (e *edit) drop(family, column string) {
	e.m.DeleteTimestampRange(family, column, 0, timestampOf(e.head.Stamp+1))
}

// dropLateCells leaves out the cells of a row that its head does not vouch for.
func (r *row) dropLateCells() {
	if r.head.Stamp == 0 {
		return
	}
	isLate := func(item bigtable.ReadItem) bool { return item.Timestamp < timestampOf(r.head.Stamp) }
	for _, family := range []string{familyEvents, familyRecords, familyBatches, familyFeed} {
		n := len(r.cells[family])
		if r.cells[family] = slices.DeleteFunc(r.cells[family], isLate); len(r.cells[family]) < n {
			r.late = true
		}
	}
}

// sinceStamp leaves out the cells below a stamp.
func sinceStamp(stamp int64, filter bigtable.Filter) bigtable.Filter {
	if stamp == 0 {
		return filter
	}
	return bigtable.ChainFilters(filter, bigtable.TimestampRangeFilterMicros(timestampOf(stamp), 0))
}

// fork is where a run's history left the one that the store has lost: of the events that the
// feed has up to a segment, those above Seq were lost.
type fork struct {
	Through int64 `json:"t"` // the number of the segment
	Seq     int64 `json:"s"`
}

// isLost reports whether an event of the feed is of a history that the store has lost.
func (h *head) isLost(at loggedEvent) bool {
	return slices.ContainsFunc(h.Forks, func(f fork) bool {
		return at.seq > f.Seq && at.position>>positionBits <= f.Through
	})
}

// startIn puts a run of which there is nothing yet into an epoch.
func (e *edit) startIn(now *epoch) {
	if now == nil {
		return
	}
	e.head.Epoch = now.Epoch
	if e.head.Stamp = now.stamp(); e.head.Stamp > 0 {
		e.head.requires(formatStamps)
		// The history that the store has lost may have had a run of this id.
		e.head.Forks = []fork{{Through: now.End}}
	}
}

// raiseRun brings a run into an epoch: it ends the grant of an epoch before, and stamps all
// cells. The caller has the run's lane.
func (s *engine) raiseRun(ctx context.Context, r *cachedRun, now *epoch, t *outcome.Backoff) error {
	found, err := s.readRun(ctx, r.id,
		wholeFamily(familyEvents), wholeFamily(familyRecords), wholeFamily(familyBatches), wholeFamily(familyFeed), moveListFilter())
	if err != nil || found.stored == nil || !found.head.isOld(now) {
		r.forget()
		return err
	}
	if string(found.stored) != string(r.stored) {
		r.forget()
	}
	r.known, r.stored, r.head, r.beat = true, found.stored, found.head, found.beat
	at, _ := s.clock.estimate()
	e := newEdit(r, at)
	e.tail = tail{}
	if e.head.Epoch < now.Epoch {
		e.head.Epoch = now.Epoch
		e.endGrant(true)
	}
	feeds := false
	if stamp := now.stamp(); e.head.Stamp < stamp {
		x, err := found.highWater()
		if err != nil {
			return err
		}
		known := s.epochCache.Load()
		through, err := s.survivingEvents(ctx, found, x, known)
		if err != nil {
			return err
		}
		feeds = e.restamp(found, x, through, &known.now)
	}
	if feeds && e.head.MarkRev == 0 {
		e.setMark()
	}
	e.placeRunnable()
	e.rows, e.alongside = append(e.rows, e.alongside...), nil
	if err := s.writeAll(ctx, e.rows); err != nil {
		s.garbage.addOrphans(e.orphans()...) // some of them may have been written
		return err
	}
	swapped, _, err := s.swap(ctx, r, e, t, nil)
	if err == nil && !swapped && !t.More(ctx) {
		err = outcome.Unavailable(outcome.Cause(ctx, errBusy))
	}
	if err != nil || !swapped { // or a copy of it was: the caller reads the row anew
		r.forget()
		return err
	}
	s.noteApplied(r, e)
	r.forget()
	if feeds {
		s.feed.add(r.id)
	}
	return nil
}

// survivingEvents returns how many of a run's events the log of the feed still has. If the last segment
// that names some was lost at the end of an epoch's log, that is what the row's steps say of
// segments before, and what the log's last segments name. Without both it is none: the feed gets
// all events of the run again, and readers pass over those of before (fork).
func (s *engine) survivingEvents(ctx context.Context, found *row, x *highWater, known *epochCache) (through int64, err error) {
	lost, is := known.lost(numberOf(x.at))
	if !is {
		return x.through, nil
	}
	for _, step := range x.steps {
		if _, is := known.lost(step.number); !is {
			through = max(through, step.through)
		}
	}
	named, err := s.logEnd(ctx, lost, known)
	return max(through, named[runGeneration{runOf(found.cells.Key()), found.head.Generation}]), err
}

// runGeneration names one life of a run.
type runGeneration struct {
	run        runstore.RunID
	generation int64
}

// logEnd returns the last event of each run in those last segments of a log that share a step
// with its end. It reads them once.
func (s *engine) logEnd(ctx context.Context, of logGap, known *epochCache) (named map[runGeneration]int64, err error) {
	known.mu.Lock()
	defer known.mu.Unlock()
	if named, read := known.ends[of]; read {
		return named, nil
	}
	from := max(of.first, of.behind/pagesPerStep*pagesPerStep)
	named = map[runGeneration]int64{}
	_, err = s.follow(ctx, from, func(g *feedPage) bool {
		if g.number > of.behind {
			return false
		}
		for _, r := range g.Ranges {
			of := runGeneration{runstore.RunID(r.Run), r.Generation}
			named[of] = max(named[of], r.From+r.N-1)
		}
		return true
	})
	if err == nil {
		known.ends[of] = named
	}
	return named, err
}

// restamp writes all cells of a row again under the stamp of an epoch, and says that the feed has
// the run's events up to a seq. It reports whether there are others to bring into it.
func (e *edit) restamp(found *row, x *highWater, through int64, now *epoch) (feeds bool) {
	h := &e.head
	h.requires(formatStamps)
	h.Stamp = now.stamp()
	h.Expires = h.expiry(found.beat)
	e.m.DeleteCellsInColumn(familyHead, columnBeat)
	for _, family := range []string{familyEvents, familyRecords, familyBatches} {
		e.m.DeleteCellsInFamily(family)
		for _, item := range found.cells[family] {
			e.set(family, qualifier(family, item), item.Value)
		}
	}
	// Rows of cold records may be missing after a failover. Whatever is put in their place has a higher version.
	h.Floor = max(h.Floor, h.ColdTop)
	for _, item := range found.cells[familyOther] {
		if column := qualifier(familyOther, item); column == columnCold && item.Timestamp >= timestampOf(found.head.Stamp) {
			e.set(familyOther, column, item.Value)
		}
	}
	// The feed's cells change beside the head: those of the new epoch stay as they are.
	if x.at >= timestampOf(now.Base) || h.Purged {
		return false
	}
	through = min(through, h.Seq)
	if through < x.through { // the log came here before the run did, or lost its end
		h.Forks = append(slices.Clone(h.Forks), fork{now.End, through})
	}
	e.m.DeleteTimestampRange(familyFeed, columnPaged(h.Generation), 0, timestampOf(h.Stamp))
	e.set(familyFeed, columnThrough(h.Generation), []byte(be64(through)))
	e.set(familyFeed, columnStep(h.Generation, 0), []byte(be64(through))) // no segment of the epoch shares this step
	return through < h.Seq
}

// learnEpochs remembers the newest epoch, and where the log of the feed is not read.
func (s *engine) learnEpochs(x *epochs) {
	if len(x.Epochs) == 0 {
		return
	}
	known := &epochCache{now: x.Epochs[len(x.Epochs)-1], ends: map[logGap]map[runGeneration]int64{}}
	first := int64(firstPage)
	for _, e := range x.Epochs {
		if e.Closed {
			known.gaps = append(known.gaps, logGap{first, e.End, e.Base})
		}
		first = e.Base
	}
	for {
		was := s.epochCache.Load()
		if was != nil && (was.now.Epoch > known.now.Epoch || was.now.Epoch == known.now.Epoch && was.now.Closed) {
			return
		}
		if s.epochCache.CompareAndSwap(was, known) {
			return
		}
	}
}

// epochCache is what a handle knows of the store's epochs.
type epochCache struct {
	now  epoch
	gaps []logGap
	mu   sync.Mutex
	ends map[logGap]map[runGeneration]int64 // see logEnd
}

// logGap is a part of the log of the feed that is not read, between the logs of two epochs: behind
// the number that ends the one, whose first is given, and before the first of the other.
type logGap struct{ first, behind, before int64 }

// lost reports whether a segment was lost at the end of an epoch's log, and at which. The number
// below the first of an epoch is no segment: it is the epoch's stamp.
func (known *epochCache) lost(number int64) (logGap, bool) {
	for _, g := range known.gaps {
		if number >= g.behind && number < g.before-1 {
			return g, true
		}
	}
	return logGap{}, false
}

// currentEpoch returns the newest epoch that the handle knows, or nil.
func (s *engine) currentEpoch() *epoch {
	if known := s.epochCache.Load(); known != nil {
		return &known.now
	}
	return nil
}

// skipGap returns the number at which a reader of the log goes on that comes to a number, and
// whether it is another.
func (s *engine) skipGap(number int64) (next int64, skips bool) {
	if known := s.epochCache.Load(); known != nil {
		for _, g := range known.gaps {
			if number > g.behind && number < g.before {
				return g.before, true
			}
		}
	}
	return number, false
}

// beatValue is the value of the cell that Bigtable stamps with the time of a grant or a renewal.
func (h *head) beatValue() []byte { return []byte(be64(h.Rev) + be64(h.Stamp)) }

// wroteBeat reports whether the head's grant or renewal wrote the cell: its timestamp is a time,
// which does not order epochs.
func (h *head) wroteBeat(value []byte) bool {
	stamp := int64(0)
	if len(value) == 16 {
		stamp = fromBE64(string(value[8:]))
	}
	return stamp == h.Stamp
}

// hintMargin is 65,536 segments: what handles append at most in the minutes by which one row
// may replicate before another. Reading them again takes a raise a thousand requests.
const hintMargin = 1 << 16

// closeLog ends the log of the epoch before the newest, tells the runs what it has, and records
// where it ends. It returns the epochs as they are stored then:
// another handle may have raised the epoch.
func (s *engine) closeLog(ctx context.Context, x *epochs) (*epochs, error) {
	last := len(x.Epochs) - 1
	now := x.Epochs[last]
	hint, err := s.hint(ctx)
	if err != nil {
		return nil, err
	}
	first := int64(firstPage)
	if last > 0 {
		first = x.Epochs[last-1].Base
	}
	// The log is there from its first segment on. The hint says up to where the rows of the runs
	// say what it has, but rows replicate apart: after a failover segments below the hint
	// may be missing, and the log ends before the first of them.
	from := max(first, min(hint, max(now.End, first))-hintMargin)
	rows := map[string]mutation{}
	for now.Closed = false; !now.Closed; {
		var last *feedPage
		end, err := s.follow(ctx, from, func(g *feedPage) bool {
			if last = g; g.number > hint && !g.isOpen() {
				g.propagate(rows)
			}
			now.Closed = g.Next == now.Base
			return !now.Closed
		})
		if err != nil {
			return nil, err
		}
		if from = end; now.Closed {
			if now.End = last.number; last.openState != nil { // an entry that comes late is not to open it again
				_, err = s.freezePage(ctx, last)
			}
		} else if last.isOpen() {
			_, err = s.closePage(ctx, last, now.Base)
		}
		if err != nil {
			return nil, err
		}
		if now.Closed || last.isOpen() {
			continue
		}
		if _, err := s.createPage(ctx, &feedPage{By: rand.Uint64(), Next: now.Base, number: end}, false); err != nil {
			return nil, err
		}
	}
	if err := s.writeAll(ctx, slices.Collect(maps.Values(rows))); err != nil {
		return nil, err
	}
	next := *x
	next.Format, next.Epochs = format, append(slices.Clone(x.Epochs[:last]), now)
	replaced, err := s.replaceEpochs(ctx, x, &next)
	if err != nil || replaced {
		return &next, err
	}
	return s.readEpochs(ctx)
}
