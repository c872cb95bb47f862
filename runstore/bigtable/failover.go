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

// A fencing token for cells: the stamp. Replication is asynchronous. After a failover to a cluster that
// lagged, writes of the history that the store has lost may still arrive, as cells beside those of the
// history that goes on, or in their place. So the timestamp of a cell is not a time but a stamp, which
// names the epoch of its write: the later epoch wins, in whatever order cells arrive.
//
//  1. The stamp of an epoch is the number below its first page of the feed's log (epoch.stamp). It grows
//     with the epochs, and is above the numbers of all pages of earlier epochs. The first epoch has the
//     stamp 0.
//  2. Raising the epoch writes all cells of a run's row again, under the new stamp and with a head that
//     has the stamp (engine.raiseRun). After that each write uses the stamp of the head. Of the cells that
//     only some runs have, it writes empty ones (edit.hideGrants).
//  3. Readers leave out the cells of a row whose stamp is below the stamp of its head (parseRow).
//     Bigtable itself returns the cell with the highest stamp of a column.
//  4. The cells of a run's high-water mark in the feed have the number of a page as their timestamp. It
//     is above the stamp of the page's epoch.
//  5. Segments of the journal have the stamp of the head that they were copied under. The page that ends
//     an epoch's log, with events or without, has the stamp of the next epoch. The numbers from there to
//     the first page of the next epoch are not read (engine.skipGap).
//
// Without 2 a cell of the lost history would replace the cell that it was written over, since both are
// of one epoch, and a record that only the lost history has would look as if the run's head named it.
// Rejected: naming the versions of all records in the head, which would make every write as large as
// that list.
//
// A write that finds its run in an old epoch raises the run first. An epoch that a program of format 1
// has raised has no stamp: its cells have the timestamp 0, and no protection.

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

// drop deletes a cell of the run's row, but no cell with a later stamp, in case the deletion arrives late.
func (e *edit) drop(family, column string) {
	e.m.DeleteTimestampRange(family, column, 0, timestampOf(e.head.Stamp+1))
}

// dropLateCells removes the cells whose stamp is below the stamp of the head.
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

// sinceStamp restricts a filter to cells from a stamp on.
func sinceStamp(stamp int64, filter bigtable.Filter) bigtable.Filter {
	if stamp == 0 {
		return filter
	}
	return bigtable.ChainFilters(filter, bigtable.TimestampRangeFilterMicros(timestampOf(stamp), 0))
}

// fork is where a run's history left the one that the store has lost: of the events that the feed's log
// names up to page Through, those above Seq were lost.
type fork struct {
	Through int64 `json:"t"` // the number of the page
	Seq     int64 `json:"s"`
}

// isLost reports whether an event of the feed is of a history that the store has lost.
func (h *head) isLost(at loggedEvent) bool {
	return slices.ContainsFunc(h.Forks, func(f fork) bool {
		return at.seq > f.Seq && at.position>>positionBits <= f.Through
	})
}

// startIn gives a run without a row the store's epoch.
func (e *edit) startIn(now *epoch) {
	if now == nil {
		return
	}
	e.head.Epoch = now.Epoch
	if e.head.Stamp = now.stamp(); e.head.Stamp > 0 {
		e.head.requires(formatStamps)
		// The history that the store has lost may have had a run with this id.
		e.head.Forks = []fork{{Through: now.End}}
		e.hideGrants()
	}
}

// hideGrants sets empty cells of the former grants, their terms and the end of the last grant, which hide those of
// the history that the store has lost. Readers take an empty cell for an absent one.
func (e *edit) hideGrants() {
	for _, column := range []string{columnFormer, columnTerms, columnEnded} {
		e.set(familyOther, column, nil)
	}
}

// raiseRun raises a run to an epoch: it ends the grant of an earlier epoch, and gives all cells the new
// stamp. The caller holds the run's lock, and reads the run again.
func (s *engine) raiseRun(ctx context.Context, r *cachedRun, now *epoch, t *outcome.Backoff) error {
	found, err := s.readRun(ctx, r.id,
		wholeFamily(familyEvents), wholeFamily(familyRecords), wholeFamily(familyBatches), wholeFamily(familyFeed), wholeFamily(familyOther))
	if err != nil || found.stored == nil || !found.head.isOld(now) {
		r.forget()
		return err
	}
	r.learn(found)
	at, _ := s.clock.estimate()
	e := newEdit(r, at)
	e.tail = tail{}
	feeds := false
	if stamp := now.stamp(); e.head.Stamp < stamp {
		x, err := found.highWater()
		if err != nil {
			return err
		}
		through, err := s.survivingEvents(ctx, found, x, s.epochCache.Load())
		if err != nil {
			return err
		}
		// Not by an epoch that the handle has learned since, whose stamp may not be known yet.
		feeds = e.restamp(found, x, through, now)
		// The row of a mark that the head names may be missing.
		if feeds || e.head.MarkRev != 0 {
			e.setMark()
		}
	}
	if e.head.Epoch < now.Epoch { // after restamp: the end has the new stamp
		e.head.Epoch = now.Epoch
		e.endGrant(true)
	}
	e.placeRunnable()
	e.rows, e.alongside = append(e.rows, e.alongside...), nil
	applied, err := s.applyFirst(ctx, r, e, t)
	if !applied {
		if err == nil && !t.More(ctx) {
			err = outcome.Unavailable(outcome.Cause(ctx, errBusy))
		}
		return err
	}
	r.forget()
	if feeds {
		s.feed.pending.add(r.id)
	}
	return nil
}

// survivingEvents returns up to which event the log still has the run's journal. If the last page that
// names some was lost at the end of an epoch's log, it takes the highest step in the row of a page that
// was not lost, and what the last pages of the log name. If there is neither, it returns 0: the feed
// gets all events of the run again, and readers skip the earlier ones (fork).
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

// runGeneration names one generation of a run.
type runGeneration struct {
	run        runstore.RunID
	generation int64
}

// logEnd returns the last event of each run in the last pages of a log, those that share a step with its
// end. It reads them once.
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

// restamp writes all cells of a row again under the stamp of an epoch, and sets the run's high-water
// mark in the feed. It reports whether the feed lacks events of the run.
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
	// Rows of cold records may be missing after a failover. A record that is put in their place has
	// a higher version.
	h.Floor = max(h.Floor, h.ColdTop)
	e.hideGrants()
	for _, item := range found.cells[familyOther] {
		if column := qualifier(familyOther, item); column != columnCold || item.Timestamp >= timestampOf(found.head.Stamp) {
			e.set(familyOther, column, item.Value)
		}
	}
	// The high-water mark changes without the head: cells of the new epoch stay.
	if x.at >= timestampOf(now.Base) || h.Purged {
		return false
	}
	through = min(through, h.Seq)
	if through < max(x.through, h.Seq) {
		// The log may have later events: it was replicated before the run, or before the positions in the
		// run's row.
		h.Forks = append(slices.Clone(h.Forks), fork{now.End, through})
	}
	e.m.DeleteTimestampRange(familyFeed, columnPaged(h.Generation), 0, timestampOf(h.Stamp))
	e.set(familyFeed, columnThrough(h.Generation), []byte(be64(through)))
	e.set(familyFeed, columnStep(h.Generation, 0), []byte(be64(through))) // no segment of the epoch shares this step
	return through < h.Seq
}

// learnEpochs remembers the newest epoch, and the gaps of the feed's log.
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

// logGap is the part of the feed's log between the logs of two epochs, which is not read: after the page
// behind, which ends the log that begins with first, and before the page before, which begins the next
// log.
type logGap struct{ first, behind, before int64 }

// lost returns the gap that a page is in, if it was lost at the end of an epoch's log. The number below
// the first page of an epoch is the epoch's stamp, not a page.
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

// skipGap reports whether a reader at number is in a gap of the log, and returns the number at which it
// continues.
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

// beatValue returns the value of the cell to which Bigtable gives the time of a grant or a renewal.
func (h *head) beatValue() []byte { return []byte(be64(h.Rev) + be64(h.Stamp)) }

// wroteBeat reports whether a write of the head's epoch wrote the cell. Its timestamp is a time, which
// does not order epochs, so its value has the stamp.
func (h *head) wroteBeat(value []byte) bool {
	stamp := int64(0)
	if len(value) == 16 {
		stamp = fromBE64(string(value[8:]))
	}
	return stamp == h.Stamp
}

// hintMargin is how many pages below the hint a raise reads again. 65,536: as many as handles write at
// most in the minutes by which one row may be replicated before another. The raise needs a thousand
// requests for them.
const hintMargin = 1 << 16

// closeLog ends the log of the epoch before the newest, writes the positions in it back to the rows of
// the runs, and records its end. It returns the epochs as they are stored then: another handle may have
// raised the epoch again.
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
	// Up to the hint the rows of the runs have the positions, but rows are replicated independently:
	// after a failover pages below the hint may be missing. The log ends before the first missing
	// page, but not below its own first page: no reader would find its pages.
	from := max(first, min(hint, now.End)-hintMargin)
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
			if now.End = last.number; last.openState != nil { // a late entry must not change the page
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
