package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// A long journal does not make a long row: its events are copied, 64 at a time, into a segment, a row that never changes; then one conditional mutation of the
// run's row records that and removes their cells. Which events are in which segment
// follows from their seqs, so two who seal at once write the same.

const (
	segmentSize = 64
	// sealAt is how many events a row has before some are sealed, crowdedAt before a
	// write waits for that.
	sealAt     = 2 * segmentSize
	mustSealAt = 8 * segmentSize
	// mustSealBytes is what a row may hold of events.
	mustSealBytes = 1 << 20
)

// unsealed returns how many events the run's row holds.
func (h *head) unsealed() int64 { return h.Seq - h.Sealed*segmentSize }

// mustSeal reports whether the row has to be relieved before it takes another event.
func (r *cachedRun) mustSeal() bool {
	return r.exists() && r.head.unsealed() >= segmentSize && (r.head.unsealed() >= mustSealAt || r.head.EventBytes > mustSealBytes)
}

// journalEvent is one event of a segment.
type journalEvent struct {
	seq  int64
	meta eventMeta
	data []byte
}

// segments reads segments by their keys.
func (s *engine) segments(ctx context.Context, keys []string) (map[string][]journalEvent, error) {
	found := map[string][]journalEvent{}
	err := s.eachSegment(ctx, keys, func(key string, events []journalEvent, damage error) error {
		found[key] = events
		return damage
	})
	return found, err
}

// eachSegment calls f for each segment that there is. damage says that it cannot be decoded.
func (s *engine) eachSegment(ctx context.Context, keys []string, f func(key string, events []journalEvent, damage error) error) error {
	return s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		number := fromBE64(r.Key()[len(r.Key())-8:])
		var events []journalEvent
		err := eachFramed(cell(r, familyOther, ""), number*segmentSize+1, func(one journalEvent, _ []byte) error {
			events = append(events, one)
			return nil
		})
		return f(r.Key(), events, err)
	})
}

// pendingSeal is what it takes to take segments out of a run's row, once they are written.
type pendingSeal struct {
	generation, stamp int64 // of the row that was copied
	from, n           int64 // the segments from number from on
	events            []string
	old               []string // columns of the feed's family that are not needed any more
	freed             int64
}

// copySegments writes as many whole segments as the row has the events of, but leaves the
// last events where a tailing reader finds them in one read. Nil means that there are
// none, or that the row has fewer events than least. No lane is needed: who else copies
// them writes the same.
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
		segment = appendFramed(segment, encodeCell(&one.meta, one.data))
		p.freed += int64(len(appendFramed(nil, bytes)))
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

// isNext reports whether the segments are those that follow in a row.
func (p *pendingSeal) isNext(h *head) bool {
	return p.generation == h.Generation && p.stamp == h.Stamp && p.from == h.Sealed
}

// seal takes segments that are written out of the row, if they are the next.
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

// prepareSeal writes the segments of a run that has become long. The run's next write
// takes them out of the row, so that sealing costs no conditional mutation of its own.
func (s *engine) prepareSeal(ctx context.Context, id runstore.RunID) error {
	if s.runs.hasPendingSeal(id) {
		return nil
	}
	p, err := s.copySegments(ctx, id, sealAt)
	if err != nil || p == nil {
		return err
	}
	// A purge that came meanwhile may have cleared the run away before these were there.
	when := s.observe()
	now, err := s.readRun(ctx, id)
	if err != nil {
		return err
	}
	if now.exists() && now.head.Generation == p.generation {
		s.runs.setPendingSeal(id, p)
		return nil
	}
	var dead []string
	for i := range p.n {
		dead = append(dead, segmentKey(id, p.generation, p.from+i))
	}
	return s.deleteDead(ctx, when, dead)
}

// sealNow relieves a row that is too full for another event: it seals those that it has. The
// caller has the run's lane.
func (s *engine) sealNow(ctx context.Context, r *cachedRun, t *outcome.Backoff) error {
	p, err := s.copySegments(ctx, r.id, segmentSize)
	if err != nil {
		return err
	}
	if p == nil || !p.isNext(&r.head) { // somebody else writes to the run
		r.forget()
		if !t.More(ctx) {
			return outcome.Unavailable(errBusy)
		}
		return nil
	}
	e := newEdit(r, runstore.FromMicros(r.head.Time))
	e.seal(p)
	swapped, _, err := s.swap(ctx, r, e, t, nil)
	if err != nil || !swapped { // or a copy of it was: the caller reads the row anew
		r.forget()
		return err
	}
	s.noteApplied(r, e)
	return nil
}
