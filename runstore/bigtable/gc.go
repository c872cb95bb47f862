package bigtable

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// Garbage collection is an orphan scan of the whole table, on demand. It deletes rows of a crash to
// which no mark leads, or about which the orphan scan in the background cannot decide. They cost
// storage, and no reader ever sees them, so nothing in the background looks for them. Of a run that was not
// purged it deletes no segments, cold records or packs.
//
//	what a crash leaves                               until it is collected
//	segments, cold records and large values of a      no head names them; a later generation uses other keys
//	purged run, written by a process that was
//	suspended during the purge and then died
//	a mark, index entries and large values of a       each orphan scan reads a row that does not exist, and
//	creation that was never applied                   each scan of the index leaves the entry out
//	pages of the feed's log whose runs were           readers skip them; compaction removes them, too
//	purged, and rows of late appends
//
// The scan reads keys, then the heads of the runs that own them. Generations and revisions only grow, so
// within an epoch a row that no head names any more stays an orphan. A failover may bring an earlier
// head back, so each deletion goes through engine.deleteDead, which reads the epoch first if the process
// may have been suspended since the head was read.

// CollectGarbage implements runstore.GarbageCollector.
func (s *Store) CollectGarbage(ctx context.Context) (deleted int, err error) {
	_, err = adapter.Do(ctx, s.Store, "collect garbage", "", nil, func(ctx context.Context) (_ struct{}, err error) {
		deleted, err = s.engine.collectGarbage(ctx)
		return struct{}{}, err
	})
	return deleted, err // with an error, too: how many rows it has deleted before
}

// collectGarbage deletes orphans of every kind and returns how many rows it deleted.
func (s *engine) collectGarbage(ctx context.Context) (deleted int, err error) {
	// The marks first: a creation that was never applied leaves a purged run, whose large values are orphans then.
	for _, kind := range []string{kindMark, kindSegment, kindCold, kindPack} {
		orphans := s.deleteOrphans
		if kind == kindMark {
			orphans = s.deleteOrphanMarks
		}
		if err := s.scanPrefix(ctx, kind, func(keys []string) error {
			n, err := orphans(ctx, keys)
			deleted += n
			return err
		}); err != nil {
			return deleted, err
		}
	}
	hint, err := s.hint(ctx)
	if err != nil {
		return deleted, err
	}
	return deleted, s.scanPrefix(ctx, kindLog, func(keys []string) error {
		for _, k := range keys {
			number := fromBE64(k[len(k)-8:])
			if len(k) != len(logKey(0)) || number != blockStart(number) || number+logBlock > hint {
				continue
			}
			if _, err := s.compact(ctx, number); err != nil {
				return err
			}
		}
		return nil
	})
}

// deleteOrphans deletes the rows, of those with the given keys, that isOrphan reports.
func (s *engine) deleteOrphans(ctx context.Context, keys []string) (deleted int, err error) {
	when := s.observe()
	var rows []string
	owned := map[runstore.RunID][]string{}
	for _, k := range keys {
		id, _, ok := ownerOf(k)
		if ok && owned[id] == nil {
			rows = append(rows, runKey(id))
		}
		owned[id] = append(owned[id], k)
	}
	var dead []string
	err = s.readList(ctx, rows, latest(wholeFamily(familyHead)), func(r bigtable.Row) error {
		found, err := parseRow(r)
		if err != nil || found.stored == nil {
			return s.unlessSkipped(runOf(r.Key()), err)
		}
		for _, k := range owned[runOf(r.Key())] {
			if found.head.isOrphan(k) {
				dead = append(dead, k)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := s.deleteDead(ctx, when, dead); err != nil {
		return 0, err
	}
	return len(dead), nil
}

// isOrphan reports whether a segment of the journal, a cold record or a pack belongs to a generation of
// the run that was purged. Within an epoch that stays so: generations and revisions only grow, and a
// write that names the row was either applied before the head was read or never will be.
func (h *head) isOrphan(key string) bool {
	_, since, ok := ownerOf(key)
	return ok && since < h.oldest(key[:1])
}

// oldest returns the first generation whose rows of a kind are no orphans; of packs, whose keys have the
// revision of their write, the first revision.
func (h *head) oldest(kind string) int64 {
	switch {
	case !h.Purged:
		return h.Generation
	case kind == kindPack:
		return h.Rev + 1
	}
	return h.Generation + 1
}

// deleteOrphanMarks deletes, of the marks with the given keys, those without a run. Before it deletes one it
// writes a purged run: then the creation cannot be applied as it was decided, and its index entries are orphans. A
// creation that is under way finds the purged run and decides again.
func (s *engine) deleteOrphanMarks(ctx context.Context, keys []string) (deleted int, err error) {
	orphans, err := s.orphanMarks(ctx, keys)
	if err != nil {
		return 0, err
	}
	for _, m := range orphans {
		when := s.observe()
		e, err := s.write(ctx, m.run, needs{fresh: true, epoch: true}, func(r *cachedRun, now time.Time) (*edit, error) {
			if r.stored != nil { // the creation was applied, and the mark may be the run's
				return nil, nil
			}
			e := newEdit(r, now)
			e.startIn(s.currentEpoch())
			e.head.Purged = true
			return e, nil
		})
		if err == nil && e != nil {
			err = s.deleteDead(ctx, when, []string{m.key()})
		}
		if err != nil {
			return deleted, err
		}
		if e != nil {
			deleted++
		}
	}
	return deleted, nil
}

// orphanMarks returns the marks, of those with the given keys, that have no run.
func (s *engine) orphanMarks(ctx context.Context, keys []string) (all []mark, err error) {
	marks, rows := marksOf(keys)
	err = s.readList(ctx, rows, latest(wholeFamily(familyHead)), func(r bigtable.Row) error {
		if found, err := parseRow(r); err != nil || found.stored != nil { // a damaged run exists
			delete(marks, runOf(r.Key()))
		}
		return nil
	})
	for _, orphans := range marks {
		all = append(all, orphans...)
	}
	return all, err
}
