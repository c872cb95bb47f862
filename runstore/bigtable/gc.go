package bigtable

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// Garbage collection scans the whole table for orphans: rows that a crash has left, and that no mark leads
// to or no pass can decide on. They cost storage, and no reader ever sees them, so nothing looks for them
// in the background.
//
//	what a crash leaves                                   until it is collected
//	rows of a life that is over: segments, cold records   no head names them; a later life has keys of its own
//	and large values that a process wrote which had been
//	suspended while its run was purged, and then died
//	a mark, and entries in queues, of a creation that     each pass reads a row that is not there, and each
//	was never made                                        scan that meets the entry leaves it out
//	segments of the feed's log whose runs were purged     a reader passes them; passes remove them too

// lonelyAfter is how long a mark without a run waits for the creation that set it: twice what its
// requests may take. A creation that takes longer finds a purged run, and is decided on anew.
const lonelyAfter = 20 * time.Second

// CollectGarbage implements runstore.GarbageCollector.
func (s *Store) CollectGarbage(ctx context.Context) (deleted int, err error) {
	err = s.op(ctx, "collect garbage", "", nil, func(ctx context.Context) error {
		deleted, err = s.collectGarbage(ctx)
		return err
	})
	return deleted, err
}

// collectGarbage deletes orphans of every kind and returns how many rows it deleted.
func (s *Store) collectGarbage(ctx context.Context) (deleted int, err error) {
	n := 0
	for _, kind := range []string{kindSegment, kindCold, kindPack} {
		if err := s.scanPrefix(ctx, kind, func(keys []string) error {
			n, err = s.collectOver(ctx, keys)
			deleted += n
			return err
		}); err != nil {
			return deleted, err
		}
	}
	n, err = s.collectLonely(ctx)
	if deleted += n; err != nil {
		return deleted, err
	}
	told, err := s.hint(ctx)
	if err != nil {
		return deleted, err
	}
	return deleted, s.scanPrefix(ctx, kindLog, func(keys []string) error {
		for _, k := range keys {
			number := fromBE64(k[len(k)-8:])
			if len(k) != len(logKey(0)) || number != blockStart(number) || number+logBlock > told {
				continue
			}
			if _, err := s.compact(ctx, number); err != nil {
				return err
			}
		}
		return nil
	})
}

// collectOver deletes those of some rows that are of lives that are over.
func (s *Store) collectOver(ctx context.Context, keys []string) (deleted int, err error) {
	when := s.present()
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
			return s.unlessPassedOver(runOf(r.Key()), err)
		}
		for _, k := range owned[runOf(r.Key())] {
			if found.head.isOver(k) {
				dead = append(dead, k)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(dead), s.collect(ctx, when, dead)
}

// isOver reports whether a row of a segment, a cold record or a pack is of a life of the run that is
// over. That stays so: lives and revisions only grow, a write that names the row was
// either made, before the head that was read, or never will be.
func (h *head) isOver(key string) bool {
	_, since, ok := ownerOf(key)
	last := h.Life // of the others; a pack has the revision of its write
	if key[:1] == kindPack {
		last = h.Rev
	}
	return ok && (since < h.Life || h.Purged && since <= last)
}

// collectLonely deletes marks that lead to no run, once their creation has had its time. A purged run
// takes the place of each run: then the creation cannot be made as it was decided any more, and its
// entries are dead.
func (s *Store) collectLonely(ctx context.Context) (deleted int, err error) {
	var all []mark
	err = s.scanPrefix(ctx, kindMark, func(keys []string) error {
		lonely, err := s.lonely(ctx, keys)
		all = append(all, lonely...)
		return err
	})
	if err != nil || len(all) == 0 {
		return 0, err
	}
	timer := time.NewTimer(s.lonelyAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, outcome.Unavailable(ctx.Err())
	}
	for _, m := range all {
		when := s.present()
		e, err := s.write(ctx, m.run, needs{fresh: true, epoch: true}, func(r *run, now time.Time) (*edit, error) {
			if r.stored != nil { // it was created after all, and the mark may be its own
				return nil, nil
			}
			e := newEdit(r, now)
			e.begin(s.epoch())
			e.head.Purged = true
			return e, nil
		})
		if err == nil && e != nil {
			err = s.collect(ctx, when, []string{m.key()})
			deleted++
		}
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// lonely returns those marks that lead to no run.
func (s *Store) lonely(ctx context.Context, keys []string) (all []mark, err error) {
	var rows []string
	marks := map[runstore.RunID][]mark{}
	for _, k := range keys {
		if m, ok := markOf(k); ok {
			rows = append(rows, runKey(m.run))
			marks[m.run] = append(marks[m.run], m)
		}
	}
	err = s.readList(ctx, rows, latest(wholeFamily(familyHead)), func(r bigtable.Row) error {
		if found, err := parseRow(r); err != nil || found.stored != nil { // a damaged run is there
			delete(marks, runOf(r.Key()))
		}
		return nil
	})
	for _, lonely := range marks {
		all = append(all, lonely...)
	}
	return all, err
}
