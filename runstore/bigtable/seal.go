package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// A long journal does not make a long row: events that the feed has are copied, 64 at a
// time, into a segment, a row that never changes; then one conditional mutation of the
// run's row records that and removes their cells. Which events are in which segment
// follows from their seqs, so two who seal at once write the same.

const (
	segmentSize = 64
	// sealAt is how many events a row has before some are sealed, crowdedAt before a
	// write waits for that.
	sealAt    = 2 * segmentSize
	crowdedAt = 8 * segmentSize
	// crowdedBytes is what a row may hold of events.
	crowdedBytes = 1 << 20
)

// unsealed returns how many events the run's row holds.
func (h *head) unsealed() int64 { return h.Seq - h.Sealed*segmentSize }

// crowded reports whether the row has to be relieved before it takes another event.
func (r *run) crowded() bool {
	return r.exists() && r.head.unsealed() >= segmentSize && (r.head.unsealed() >= crowdedAt || r.head.EventBytes > crowdedBytes)
}

// sealedEvent is one event of a segment.
type sealedEvent struct {
	seq   int64
	about about
	data  []byte
}

// segments reads segments by their keys.
func (s *Store) segments(ctx context.Context, keys []string) (map[string][]sealedEvent, error) {
	found := map[string][]sealedEvent{}
	err := s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		number := fromBE64(r.Key()[len(r.Key())-8:])
		var events []sealedEvent
		err := frames(cell(r, familyOther, ""), number*segmentSize+1, func(one sealedEvent, _ []byte) error {
			events = append(events, one)
			return nil
		})
		found[r.Key()] = events
		return err
	})
	return found, err
}

// seal moves as many whole segments out of the row as the feed has the events of, but
// leaves the last events where a tailing reader finds them in one read. The caller has
// the run's lane. It reports whether there was something to seal.
func (s *Store) seal(ctx context.Context, r *run, t *tries) (sealed bool, err error) {
	from := r.head.Sealed * segmentSize
	upTo := from + max(r.head.unsealed()/segmentSize-1, 1)*segmentSize
	found, err := s.readRun(ctx, r.id, eventColumns(from+1, upTo), wholeFamily(familyFeed))
	if err != nil {
		return false, err
	}
	if !found.exists() || string(found.stored) != string(r.stored) {
		r.forget()
		return false, nil // somebody else writes to the run
	}
	positions, err := found.positions()
	if err != nil {
		return false, err
	}
	e := newEdit(r, runstore.FromMicros(r.head.Time))
	var segment []byte
	freed, last := int64(0), min(upTo, positions.through/segmentSize*segmentSize)
	err = found.events(func(one sealedEvent, bytes []byte) error {
		if one.seq > last {
			return nil
		}
		one.about.Position = positions.of(one.seq)
		segment = appendFramed(segment, join(&one.about, one.data))
		freed += int64(len(appendFramed(nil, bytes)))
		if one.seq%segmentSize == 0 {
			e.rows = append(e.rows, put(segmentKey(r.id, r.head.Life, e.head.Sealed), "", segment))
			e.head.Sealed++
			segment = nil
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, item := range found.cells[familyEvents] {
		if q := qualifier(familyEvents, item); fromBE64(q) <= e.head.Sealed*segmentSize {
			e.m.DeleteCellsInColumn(familyEvents, q)
		}
	}
	if len(e.rows) == 0 {
		return false, nil
	}
	e.head.EventBytes -= freed
	for _, told := range positions.extents {
		if told.from+told.n-1 <= e.head.Sealed*segmentSize {
			e.m.DeleteCellsInColumn(familyFeed, told.column)
		}
	}
	if err := s.writeAll(ctx, e.rows); err != nil {
		return false, err
	}
	made, err := s.swap(ctx, r, e, t)
	if err != nil || !made {
		r.forget()
		if now, err := s.readRun(ctx, r.id); err == nil && (!now.exists() || now.head.Life != e.head.Life) {
			for _, m := range e.rows { // those of a life that has ended are nobody's
				s.waste.add(m.key)
			}
		}
		return made, err
	}
	s.made(r, e)
	return true, nil
}

// makeRoom relieves a row that is too full for another event: it sees to it that the
// feed has the events, and seals them.
func (s *Store) makeRoom(ctx context.Context, r *run, t *tries) error {
	if err := s.feed.sequence(ctx, r.id); err != nil {
		return err
	}
	sealed, err := s.seal(ctx, r, t)
	if err == nil && !sealed && !t.more(ctx) {
		return unavailable(errBusy)
	}
	return err
}
