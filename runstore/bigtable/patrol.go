package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// A run that was purged has no mark once it was cleared away. What a process writes
// after that which had been suspended, and then dies (the segments of a seal, the
// packs of a commit), no mark leads to. So each pass over the marks looks at a few rows of
// these kinds as well, at a place of its own, and in time at all of them.

// patrolled is how many rows of a kind a pass looks at.
const patrolled = 64

// patrol deletes rows of lives that are over, among the first after a hash, in a circle, and
// compacts the feed there.
func (s *Store) patrol(ctx context.Context, hash string) error {
	when := s.present()
	var rows []string
	owned := map[runstore.RunID][]string{}
	for _, kind := range []string{kindSegment, kindCold, kindPack} {
		keys, err := s.keys(ctx, kind+hash, after(kind), patrolled)
		if err == nil && len(keys) < patrolled {
			var more []string
			more, err = s.keys(ctx, kind, kind+hash, patrolled-len(keys))
			keys = append(keys, more...)
		}
		if err != nil {
			return err
		}
		for _, k := range keys {
			id, _, ok := ownerOf(k)
			if ok && owned[id] == nil {
				rows = append(rows, runKey(id))
			}
			owned[id] = append(owned[id], k)
		}
	}
	var dead []string
	err := s.readList(ctx, rows, latest(wholeFamily(familyHead)), func(r bigtable.Row) error {
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
		return err
	}
	if err := s.collect(ctx, when, dead); err != nil {
		return err
	}
	return s.patrolLog(ctx, hash)
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
