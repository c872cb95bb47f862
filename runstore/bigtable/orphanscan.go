package bigtable

import (
	"cmp"
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// The orphan scan finds what a crash has left, by way of marks. A mark is a write-ahead intent: a row whose
// key names a run, written before the run's creation, or before the first write that finds the run without a
// mark. The scan of a run that has a mark finds events that the feed does not have, and what a purged run has
// left. The large values of a write that a crash interrupts, and the rows of a move of records, stay until the run
// is purged: only all that names such rows could show that nothing names these, and a mistake would delete live
// ones.
//
// The handle that has committed an event appends it to the feed within milliseconds. So a scan publishes only
// events that the feed already lacked at the scan before, seconds ago. If it published newer ones it would
// compete with all live handles: it would close the open page of the log, and each of them would have to read
// the log again.
//
// The scan deletes the mark of a run that has been idle for idleAfter and has nothing left to do. It records
// that in the run's head first, so that the next write sets a mark again. It only queues the run, and another
// goroutine does the work (upkeep.retireLoop). It leaves a mark without a run to gc.go: the creation is under way,
// or was never applied.

const (
	// orphanScanEvery is how often the handle that claimed a shard of the marks scans it, on
	// average. 4 s: two scans publish the events of a handle that died, within 12 s.
	orphanScanEvery = 4 * time.Second
	// idleAfter is how long a run is idle before its mark is deleted. 10 min: a mark costs each scan
	// a read of the run's head, and setting a new one costs the run's next write a request.
	idleAfter = 10 * time.Minute
)

// orphanScan scans the marks of the given shards, which are sorted.
func (s *engine) orphanScan(ctx context.Context, mine []int) error {
	s.upkeep.lacked, s.upkeep.lacks = s.upkeep.lacks, map[runGeneration]int64{}
	for len(mine) > 0 {
		n := 1
		for n < len(mine) && mine[n] == mine[n-1]+1 {
			n++
		}
		from, to := kindMark+string([]byte{byte(mine[0])}), kindMark+string([]byte{byte(mine[n-1] + 1)})
		err := s.scanRange(ctx, from, to, func(keys []string) error {
			if s.isClosed() {
				return errStopped
			}
			if err := s.scanMarks(ctx, keys); err != nil && ctx.Err() == nil {
				s.opts.Logger.Warn("bigtable: the orphan scan of some marks failed", "error", err)
			}
			if len(keys) == scanPage { // there may be more
				s.upkeep.keepClaims(ctx)
			}
			return nil
		})
		if err != nil {
			return err
		}
		mine = mine[n:]
	}
	return nil
}

// isClosed reports whether Close has begun.
func (s *engine) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

var errStopped = errors.New("bigtable: the handle was closed")

// scanMarks visits the runs that marks name. After an error about one run it goes on with the next.
func (s *engine) scanMarks(ctx context.Context, keys []string) error {
	marks, rows := marksOf(keys)
	if _, err := s.readEpochs(ctx); err != nil { // it learns the newest epoch
		return err
	}
	when := s.observe()
	var dead []string
	var old []runstore.RunID
	overdue := map[runstore.RunID]int64{}
	err := s.readList(ctx, rows, latest(wholeFamily(familyHead), wholeFamily(familyFeed)), func(r bigtable.Row) error {
		id := runOf(r.Key())
		parsed, err := parseRow(r)
		if err != nil || parsed.stored == nil {
			return s.unlessSkipped(id, err)
		}
		for _, m := range marks[id] {
			if m != parsed.head.mark(id) && m.rev <= parsed.head.Rev {
				dead = append(dead, m.key())
			}
		}
		x, err := parsed.highWater()
		if err != nil {
			return s.unlessSkipped(id, err)
		}
		switch {
		case s.isIdle(id, parsed, x):
			s.upkeep.toRetire.add(id)
		case !parsed.head.Purged && x.through < parsed.head.Seq:
			run := runGeneration{id, parsed.head.Generation}
			s.upkeep.lacks[run] = parsed.head.Seq
			if due := s.upkeep.lacked[run]; x.through < due && s.feed.mayLack(ctx, id, &parsed.head, due) {
				overdue[id] = due
			}
		}
		if parsed.head.isOld(s.currentEpoch()) { // its creation was under way when the epoch was raised, or a cell arrived late
			old = append(old, id)
		}
		return nil
	})
	errs := []error{err, s.deleteDead(ctx, when, dead)}
	for _, id := range old { // first, because compose leaves out runs that are old
		errs = append(errs, s.unlessSkipped(id, s.endGrant(ctx, id)))
	}
	return errors.Join(append(errs, s.feed.publishOverdue(ctx, overdue))...)
}

// isIdle reports whether a run needs no mark: it was purged, or it has no live lease, no recent write, and no
// event that the feed does not have.
func (s *engine) isIdle(id runstore.RunID, r *row, x *highWater) bool {
	now, _ := s.clock.estimate()
	return r.head.Purged || x.through >= r.head.Seq && now.Sub(runstore.FromMicros(r.head.Time)) > idleAfter &&
		!r.head.rules(id, r.beat).Live(now)
}

// retireMark deletes what purged generations of a run have left, if the run is idle or was purged, and then the
// run's mark. It first replaces the run's revision, so that each earlier write has either been applied or never
// will be. It calls keep before it begins and between its requests, and ends when keep returns an error.
func (s *engine) retireMark(ctx context.Context, id runstore.RunID, keep func() error) error {
	if err := keep(); err != nil {
		return err
	}
	when := s.observe()
	found, err := s.readRun(ctx, id, wholeFamily(familyFeed))
	if err != nil || found.stored == nil || found.head.MarkRev == 0 {
		return err
	}
	if x, err := found.highWater(); err != nil || !s.isIdle(id, found, x) {
		return err
	}
	e, err := s.bumpRevision(ctx, id, found.head.Rev, func(*head) {})
	if err != nil || e == nil {
		return err
	}
	h := e.head
	// The mark is deleted last, so a retirement that is interrupted begins again.
	collect := func(keys []string) error {
		if err := s.deleteDead(ctx, when, keys); err != nil {
			return err
		}
		return keep()
	}
	for _, kind := range []string{kindSegment, kindCold, kindPack} {
		prefix := ownedKey(kind, id)
		if err := s.scanRange(ctx, prefix, prefix+be64(h.oldest(kind)), collect); err != nil {
			return err
		}
	}
	if err := keep(); err != nil {
		return err
	}
	if err := s.checkEpoch(ctx, when); err != nil {
		return err
	}
	m := h.mark(id)
	e, err = s.bumpRevision(ctx, id, h.Rev, func(h *head) { h.MarkRev, h.MarkBy = 0, 0 })
	if err != nil || e == nil {
		return err
	}
	return s.deleteDead(ctx, when, []string{m.key()})
}

// deleteDead deletes rows that no run names, as observed at when or later. If the process may have been
// suspended since, it reads the epoch before each request: after a failover a run's head may name the rows again.
func (s *engine) deleteDead(ctx context.Context, when observation, keys []string) error {
	return s.deleteGarbage(ctx, rowsOf(when, keys))
}

// checkEpoch returns errRaised if the epoch was raised after when. It reads the epoch if the process may have
// been suspended since then.
func (s *engine) checkEpoch(ctx context.Context, when observation) error {
	if still, err := s.ofCurrentEpoch(ctx, []garbageRow{{observation: when}}); err != nil || len(still) == 0 {
		return cmp.Or(err, errRaised)
	}
	return nil
}

// errRaised ends a scan during which the epoch was raised.
var errRaised = errors.New("bigtable: the epoch was raised while a run was scanned for orphans")

// bumpRevision replaces the run's revision, if it is still rev. Nothing that a reader sees changes.
func (s *engine) bumpRevision(ctx context.Context, id runstore.RunID, rev int64, change func(h *head)) (*edit, error) {
	return s.write(ctx, id, needs{}, func(r *cachedRun, now time.Time) (*edit, error) {
		if r.stored == nil || r.head.Rev != rev {
			return nil, nil
		}
		e := newEdit(r, now)
		e.head.Time = r.head.Time
		change(&e.head)
		return e, nil
	})
}
