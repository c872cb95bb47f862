package bigtable

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// A run that is written to has a mark, a row whose key leads to it: since its creation,
// or since the write that found it without. Passes over the marks find what a crash has
// left: events that the feed does not have, segments and packs of a run that was purged,
// packs of writes that were never made. A mark goes when its run has been idle for a
// while and nothing is left to do; the run's head says so first, so that the next write
// sets it again.

const (
	// sweepEvery is how often a handle passes over the marks, on average.
	sweepEvery = 4 * time.Second
	// idleAfter is how long a run is idle before its mark goes.
	idleAfter = 10 * time.Minute
)

// later does something in the background.
func (s *Store) later(f func(ctx context.Context) error) {
	select {
	case <-s.closed:
		return
	default:
	}
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.stopped, s.opts.Patience)
		defer cancel()
		if err := f(ctx); err != nil && s.stopped.Err() == nil {
			s.opts.Logger.Warn("bigtable: work in the background failed", "error", err)
		}
	})
}

// sweep passes over the marks.
func (s *Store) sweep(ctx context.Context) {
	if err := s.sweepMarks(ctx); err != nil && ctx.Err() == nil {
		s.opts.Logger.Warn("bigtable: a pass over the marks failed", "error", err)
	}
}

func (s *Store) sweepMarks(ctx context.Context) error {
	var marked []runstore.RunID
	if err := s.scanPrefix(ctx, kindMark, func(key string) { marked = append(marked, markOf(key)) }); err != nil {
		return err
	}
	now, _ := s.clock.estimate()
	for len(marked) > 0 {
		n := min(len(marked), 500)
		var behind, idle []runstore.RunID
		keys := make([]string, n)
		for i, id := range marked[:n] {
			keys[i] = runKey(id)
		}
		err := s.readList(ctx, keys, latest(wholeFamily(familyHead), wholeFamily(familyFeed)), func(r bigtable.Row) error {
			parsed, err := parseRow(r)
			if err != nil || parsed.stored == nil {
				return err
			}
			id := runOf(r.Key())
			if parsed.head.Purged || now.Sub(runstore.FromMicros(parsed.head.Time)) > idleAfter && !parsed.head.rules(id, parsed.beat).Live(now) {
				idle = append(idle, id)
			}
			x, err := parsed.positions()
			if err == nil && !parsed.head.Purged && x.through < parsed.head.Seq {
				behind = append(behind, id)
			}
			return err
		})
		if err == nil {
			err = s.feed.sequence(ctx, behind...)
		}
		for _, id := range idle {
			if err == nil {
				err = s.visit(ctx, id)
			}
		}
		if err != nil {
			return err
		}
		marked = marked[n:]
	}
	return nil
}

// visit collects what is left of a run that is idle or was purged, and takes its mark.
func (s *Store) visit(ctx context.Context, id runstore.RunID) error {
	found, err := s.readRun(ctx, id, wholeFamily(familyRecords))
	if err != nil || found.stored == nil {
		return err
	}
	var dead []string
	if err := s.scanPrefix(ctx, ownedKey(kindSegment, id), func(key string) {
		life := fromBE64(key[len(key)-16 : len(key)-8])
		if life < found.head.Life || life == found.head.Life && found.head.Purged {
			dead = append(dead, key)
		}
	}); err != nil {
		return err
	}
	packs, err := s.deadPacks(ctx, id, found)
	if err != nil {
		return err
	}
	all := []mutation{}
	for _, k := range append(dead, packs...) {
		all = append(all, remove(k))
	}
	if err := s.writeAll(ctx, all); err != nil {
		return err
	}
	e, err := s.write(ctx, id, needs{}, func(r *run, now time.Time) (*edit, error) {
		if r.stored == nil || r.head.Rev != found.head.Rev {
			return nil, nil
		}
		e := newEdit(r, now)
		e.head.Marked, e.head.Time = false, r.head.Time
		return e, nil
	})
	if err != nil || e == nil {
		return err
	}
	return s.unmark(ctx, id)
}

// unmark deletes the mark of a run whose head says that it has none, unless a write
// has set it again meanwhile: then it sets it once more, since that may have been before.
func (s *Store) unmark(ctx context.Context, id runstore.RunID) error {
	if err := s.writeAll(ctx, []mutation{remove(markKey(id))}); err != nil {
		return err
	}
	found, err := s.readRun(ctx, id)
	if err != nil || !found.head.Marked {
		return err
	}
	return s.writeAll(ctx, []mutation{put(markKey(id), "", nil)})
}

// deadPacks returns the rows of packs that nothing names and nothing can name any
// more: those of writes that were not made, and of records that were replaced.
func (s *Store) deadPacks(ctx context.Context, id runstore.RunID, found *row) (dead []string, err error) {
	var keys []string
	prefix := ownedKey(kindPack, id)
	if err := s.scanPrefix(ctx, prefix, func(key string) { keys = append(keys, key) }); err != nil || len(keys) == 0 {
		return nil, err
	}
	named := map[string]bool{}
	for _, item := range found.cells[familyRecords] {
		var m meta
		if _, err := split(item.Value, &m); err != nil {
			return nil, err
		}
		if m.Pack != nil {
			named[m.Pack.key(id, 0)[:len(prefix)+25]] = true
		}
	}
	for _, key := range keys {
		rest := key[len(prefix):]
		rev, nonce, what, of := fromBE64(rest[:8]), uint64(fromBE64(rest[8:16])), rest[16:17], fromBE64(rest[17:25])
		switch {
		case rev > found.head.Rev:
			// Its write may still be made.
		case found.head.Purged || rev < found.head.Life:
			dead = append(dead, key)
		case what == "r":
			if !named[key[:len(prefix)+25]] {
				dead = append(dead, key)
			}
		default:
			made, err := s.madeEvent(ctx, id, found, of, nonce)
			if err != nil {
				return nil, err
			}
			if !made {
				dead = append(dead, key)
			}
		}
	}
	return dead, nil
}

// madeEvent reports whether the write with a nonce appended the event with a seq.
func (s *Store) madeEvent(ctx context.Context, id runstore.RunID, found *row, seq int64, nonce uint64) (bool, error) {
	if number := (seq - 1) / segmentSize; number < found.head.Sealed {
		key := segmentKey(id, found.head.Life, number)
		segments, err := s.segments(ctx, []string{key})
		if err != nil {
			return false, err
		}
		i := int((seq - 1) % segmentSize)
		return i < len(segments[key]) && segments[key][i].about.Nonce == nonce, nil
	}
	r, err := s.readRun(ctx, id, eventColumns(seq, seq))
	if err != nil {
		return false, err
	}
	made := (seq-1)/segmentSize < r.head.Sealed // sealed meanwhile: the next pass looks there
	err = r.events(func(one sealedEvent, _ []byte) error {
		made = made || one.seq == seq && one.about.Nonce == nonce
		return nil
	})
	return made, err
}
