package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Sealing keeps the run's row short: it copies 64 events at a time into a segment of the journal, an
// immutable row. Then one conditional mutation of the run's row counts the segments and removes the
// cells of their events. The seq of an event determines its segment, so handles that seal at the same
// time write the same rows.

const (
	segmentSize = 64
	// sealAt is how many events a row has before the background seals some, mustSealAt before each
	// write seals some.
	sealAt     = 2 * segmentSize
	mustSealAt = 8 * segmentSize
	// mustSealBytes is how many bytes of events a row has before each write seals some.
	mustSealBytes = 1 << 20
)

// unsealed returns how many events the run's row holds.
func (h *head) unsealed() int64 { return h.Seq - h.Sealed*segmentSize }

// mustSeal reports whether the next write of events has to seal some, so that the row stays small.
func (r *cachedRun) mustSeal() bool {
	return r.exists() && r.head.unsealed() >= segmentSize && (r.head.unsealed() >= mustSealAt || r.head.EventBytes > mustSealBytes)
}

// journalEvent is an event as the run's row or a segment stores it.
type journalEvent struct {
	seq  int64
	meta eventMeta
	data []byte
}

// journalSegment is a segment of the journal: segmentSize events in an immutable row.
type journalSegment []journalEvent

// readSegments reads segments of the journal by their keys.
func (s *engine) readSegments(ctx context.Context, keys []string) (map[string]journalSegment, error) {
	found := map[string]journalSegment{}
	err := s.eachSegment(ctx, keys, func(key string, events journalSegment, damage error) error {
		found[key] = events
		return damage
	})
	return found, err
}

// eachSegment calls f for each segment that exists. damage is the error if it cannot be decoded.
func (s *engine) eachSegment(ctx context.Context, keys []string, f func(key string, events journalSegment, damage error) error) error {
	return s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		number := fromBE64(r.Key()[len(r.Key())-8:])
		var events journalSegment
		err := eachFramed(cell(r, familyOther, ""), number*segmentSize+1, func(one journalEvent, _ []byte) error {
			events = append(events, one)
			return nil
		})
		return f(r.Key(), events, err)
	})
}

// pendingSeal describes segments that are written and not yet recorded in the run's row.
type pendingSeal struct {
	generation, stamp int64 // of the row that was copied
	from, n           int64 // the number of the first segment, and how many there are
	events            []string
	old               []string // obsolete columns of the feed's family
	freed             int64
}

// copySegments writes the segments whose events are in the row, except the last one if there are several, so
// that a tailing reader finds the last events in one read. It returns nil if there is no whole segment, or if
// the row has fewer events than least. The caller need not hold the run's lock, because other handles write
// the same segments.
func (s *engine) copySegments(ctx context.Context, id runstore.RunID, least int64) (*pendingSeal, error) {
	found, err := s.readRun(ctx, id, wholeFamily(familyEvents), wholeFamily(familyFeed))
	if err != nil || !found.exists() || found.head.unsealed() < least {
		return nil, err
	}
	x, err := found.highWater()
	if err != nil {
		return nil, err
	}
	h := &found.head
	p := &pendingSeal{generation: h.Generation, stamp: h.Stamp, from: h.Sealed, old: x.old}
	last := (h.Sealed + max(h.unsealed()/segmentSize-1, 1)) * segmentSize
	var rows []mutation
	var segment []byte
	err = found.events(func(one journalEvent, bytes []byte) error {
		if one.seq > last {
			return nil
		}
		before := len(segment)
		segment = appendFramed(segment, bytes)
		p.freed += int64(len(segment) - before)
		if one.seq%segmentSize == 0 {
			rows = append(rows, putAt(segmentKey(id, h.Generation, p.from+p.n), "", timestampOf(h.Stamp), segment))
			p.n++
			segment = nil
		}
		return nil
	})
	if err != nil || p.n == 0 {
		return nil, err
	}
	end := (p.from + p.n) * segmentSize
	for _, item := range found.cells[familyEvents] {
		if q := qualifier(familyEvents, item); fromBE64(q) <= end {
			p.events = append(p.events, q)
		}
	}
	return p, s.writeAll(ctx, rows)
}

// isNext reports whether the segments are the next ones of the row with the head.
func (p *pendingSeal) isNext(h *head) bool {
	return p.generation == h.Generation && p.stamp == h.Stamp && p.from == h.Sealed
}

// seal records segments that are written and removes the cells of their events, if they are the next ones.
func (e *edit) seal(p *pendingSeal) {
	h := &e.head
	if p == nil || !p.isNext(h) || h.Purged {
		return
	}
	h.Sealed += p.n
	h.EventBytes -= p.freed
	for _, q := range p.events {
		e.drop(familyEvents, q)
	}
	for _, column := range p.old {
		e.m.DeleteCellsInColumn(familyFeed, column)
	}
}

// sealInBackground calls prepareSeal for a run that has become long, unless another call is at work. After an error
// the next write of the run begins it again.
func (s *engine) sealInBackground(r *cachedRun) {
	if !r.exists() || r.head.unsealed() < sealAt || r.pendingSeal.Load() != nil || !r.sealing.CompareAndSwap(false, true) {
		return
	}
	s.inBackground(func(ctx context.Context) error {
		defer r.sealing.Store(false)
		return s.unlessSkipped(r.id, s.prepareSeal(ctx, r))
	})
}

// prepareSeal writes the segments of a run that has become long. The run's next write records them, so
// sealing costs no conditional mutation of its own.
func (s *engine) prepareSeal(ctx context.Context, r *cachedRun) error {
	p, err := s.copySegments(ctx, r.id, sealAt)
	if err != nil || p == nil {
		return err
	}
	// If the run was purged meanwhile, the orphan scan may have visited it before these rows were there.
	when := s.observe()
	now, err := s.readRun(ctx, r.id)
	if err != nil {
		return err
	}
	if now.exists() && now.head.Generation == p.generation {
		r.pendingSeal.Store(p)
		return nil
	}
	var dead []string
	for i := range p.n {
		dead = append(dead, segmentKey(r.id, p.generation, p.from+i))
	}
	return s.deleteDead(ctx, when, dead)
}

// sealNext makes sure that the next write of a full row seals some of its events: it copies segments, unless the
// background has copied the next ones. If another handle writes to the run, sealNext drops what this handle
// remembers of the run, and the caller reads the run again. The caller holds the run's lock.
func (s *engine) sealNext(ctx context.Context, r *cachedRun, t *outcome.Backoff) error {
	if p := r.pendingSeal.Load(); p != nil && p.isNext(&r.head) {
		return nil
	}
	p, err := s.copySegments(ctx, r.id, segmentSize)
	if err == nil && p != nil && p.isNext(&r.head) {
		r.pendingSeal.Store(p)
		return nil
	}
	r.forget()
	if err == nil && !t.More(ctx) {
		err = outcome.Unavailable(outcome.Cause(ctx, errBusy))
	}
	return err
}
