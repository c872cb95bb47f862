package bigtable

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// The orphan scan finds what a crash has left, by way of marks. A mark is a write-ahead intent: a row whose
// key names a run, written before the run's creation, or before the first write that finds the run without a
// mark. The scan of a run that has a mark finds events that the feed does not have, journal segments and
// packs of a purged run, and packs of writes that were never applied.
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

// retireMark deletes what is left of a run that is idle or was purged, and then the run's mark. It first
// replaces the run's revision, so that each earlier write has either been applied or never will be. It calls keep
// before it begins and between its requests, and ends when keep returns an error.
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
	if found, err = s.readRun(ctx, id, wholeFamily(familyRecords), moveListFilter()); err != nil || found.head.Rev != e.head.Rev {
		return err
	}
	// The mark is deleted last, so a retirement that is interrupted begins again.
	collect := func(keys []string) error {
		if err := s.deleteDead(ctx, when, keys); err != nil {
			return err
		}
		return keep()
	}
	if err := s.scanPrefix(ctx, ownedKey(kindSegment, id), func(keys []string) error {
		return collect(slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !found.head.isOrphan(k) }))
	}); err != nil {
		return err
	}
	complete, err := s.orphanColdRows(ctx, id, found, collect)
	if err != nil {
		return err
	}
	err = s.orphanPacks(ctx, id, found, complete, collect, keep)
	if errors.Is(err, errMoved) { // the run is in use again
		return nil
	}
	if err == nil {
		err = keep()
	}
	if err != nil {
		return err
	}
	if err := s.checkEpoch(ctx, when); err != nil {
		return err
	}
	m := found.head.mark(id)
	e, err = s.bumpRevision(ctx, id, found.head.Rev, func(h *head) { h.MarkRev, h.MarkBy = 0, 0 })
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

// orphanPacks calls collect with the rows of packs that no head can name any more: those of writes that were
// not applied, and of records that were replaced. It keeps those that a missing row may name: the last row that
// names one may come late after a failover. complete says that no row of a cold record is missing. orphanPacks
// calls keep after each of its other requests.
func (s *engine) orphanPacks(ctx context.Context, id runstore.RunID, found *row, complete bool, collect func([]string) error, keep func() error) error {
	prefix := ownedKey(kindPack, id)
	var named map[string]bool
	last := eventNonces{block: -1}
	return s.scanPrefix(ctx, prefix, func(keys []string) (err error) {
		if err := keep(); err != nil {
			return err
		}
		if named == nil {
			if named, err = s.namedPacks(ctx, id, found, keep); err != nil {
				return err
			}
		}
		var dead []string
		for _, key := range keys {
			rest := key[len(prefix):]
			if len(rest) < 25 {
				continue // this program did not write it
			}
			rev, nonce, what, of := fromBE64(rest[:8]), uint64(fromBE64(rest[8:16])), rest[16:17], fromBE64(rest[17:25])
			switch {
			case rev > found.head.Rev:
				// Its write may still be applied.
			case found.head.Purged || rev < found.head.Generation:
				dead = append(dead, key)
			case what == "r":
				if complete && !named[key[:len(prefix)+25]] {
					dead = append(dead, key)
				}
			default:
				if block := min((of-1)/segmentSize, found.head.Sealed); block != last.block {
					if last, err = s.readNonces(ctx, id, found, block); err == nil {
						err = keep()
					}
					if err != nil {
						return err
					}
				}
				if !last.unknown && (of-1)/segmentSize >= last.from && last.of[of] != nonce {
					dead = append(dead, key)
				}
			}
		}
		return collect(dead)
	})
}

// namedPacks returns the packs of the records of a run, by the start of their keys. It calls keep after each
// request.
func (s *engine) namedPacks(ctx context.Context, id runstore.RunID, found *row, keep func() error) (map[string]bool, error) {
	named := map[string]bool{}
	name := func(m *recordMeta) {
		if m.Pack != nil {
			named[m.Pack.key(id, 0)[:len(ownedKey(kindPack, id))+25]] = true
		}
	}
	for _, item := range found.cells[familyRecords] {
		var m recordMeta
		if _, err := decodeCell(item.Value, &m); err != nil {
			return nil, err
		}
		name(&m)
	}
	return named, s.coldPacks(ctx, id, found, keep, name)
}

// eventNonces has the nonces of the writes that appended some events, by the seqs of the events: those of a
// segment of the journal, or those of the run's row. Packs are sorted by revision, so packs of one segment
// follow each other.
type eventNonces struct {
	block   int64 // the number of the segment; of the row, that of the segment to be sealed next
	from    int64 // the number of the first segment whose events are in it
	unknown bool  // the segment is missing
	of      map[int64]uint64
}

// readNonces reads the nonces of a block of events.
func (s *engine) readNonces(ctx context.Context, id runstore.RunID, found *row, block int64) (eventNonces, error) {
	n := eventNonces{block: block, from: block, of: map[int64]uint64{}}
	if block < found.head.Sealed {
		key := segmentKey(id, found.head.Generation, block)
		segments, err := s.readSegments(ctx, []string{key})
		events, there := segments[key]
		for _, one := range events {
			n.of[one.seq] = one.meta.Nonce
		}
		n.unknown = !there
		return n, err
	}
	r, err := s.readRun(ctx, id, wholeFamily(familyEvents))
	if err != nil {
		return n, err
	}
	n.from = r.head.Sealed // an event that was sealed meanwhile: the next scan looks there
	return n, r.events(func(one journalEvent, _ []byte) error {
		n.of[one.seq] = one.meta.Nonce
		return nil
	})
}
