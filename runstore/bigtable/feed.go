package bigtable

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// The feed is a log of segments, rows that never change. Each names ranges of events,
// and has a number; a position is the number and an event's place in the segment. Who
// wants to append creates the row of the next number, if it is absent: of several who
// try, one does. So there is one log, whoever writes to it and however late, without a
// lease. Whoever appends has read all segments before, so it knows which events the
// log has, and names only those that follow. See sequencer.go.

const (
	positionBits = 10
	maxSegment   = 1<<positionBits - 1 // events of one segment
	firstSegment = 1
)

// segment is a row of the log.
type segment struct {
	By     uint64 `json:"by"`             // who made it
	Next   int64  `json:"next,omitempty"` // the number that follows, if not its own plus 1: an epoch has ended
	Ranges []span `json:"ranges,omitempty"`
	number int64
}

// span is a range of a run's events.
type span struct {
	Run  []byte `json:"run"`
	Life int64  `json:"life"`
	From int64  `json:"from"`
	N    int64  `json:"n"`
}

func (g *segment) next() int64 {
	if g.Next != 0 {
		return g.Next
	}
	return g.number + 1
}

// events returns how many events the segment names.
func (g *segment) events() (n int64) {
	for _, r := range g.Ranges {
		n += r.N
	}
	return n
}

func positionOf(number, place int64) int64 { return number<<positionBits | place }

// log reads the segments of the log that there are among numbers.
func (s *Store) log(ctx context.Context, numbers ...int64) (map[int64]*segment, error) {
	keys := make([]string, len(numbers))
	for i, n := range numbers {
		keys[i] = logKey(n)
	}
	found := map[int64]*segment{}
	err := s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		g := &segment{number: fromBE64(r.Key()[len(r.Key())-8:])}
		found[g.number] = g
		return json.Unmarshal(cell(r, familyOther, ""), g)
	})
	return found, err
}

// follow calls f for the segments from number on, until there is none or f returns
// false, and returns the number that it would have gone on with.
func (s *Store) follow(ctx context.Context, number int64, f func(g *segment) bool) (next int64, err error) {
	for ahead := int64(4); ; ahead = min(2*ahead, 64) {
		var numbers []int64
		for n := range ahead {
			numbers = append(numbers, number+n)
		}
		found, err := s.log(ctx, numbers...)
		if err != nil {
			return number, err
		}
		for range ahead {
			g := found[number]
			if g == nil {
				if number <= numbers[len(numbers)-1] && number >= numbers[0] {
					return number, nil
				}
				break // it went on elsewhere
			}
			number = g.next()
			if !f(g) {
				return number, nil
			}
		}
	}
}

// extent says where in the feed a range of a run's events is.
type extent struct {
	column            string
	from, n, position int64
}

// extents is what a run's row says of the feed: how far it has the run's events, and
// where those that are not sealed are.
type extents struct {
	through int64
	extents []extent
}

func (x *extents) of(seq int64) int64 {
	for _, e := range x.extents {
		if seq >= e.from && seq < e.from+e.n {
			return e.position + seq - e.from
		}
	}
	return 0
}

// The columns of the feed's family.
func columnThrough(life int64) string      { return "t" + be64(life) }
func columnExtent(life, from int64) string { return "p" + be64(life) + be64(from) }

func (r *row) positions() (*extents, error) {
	x := &extents{}
	for _, item := range r.cells[familyFeed] {
		q := qualifier(familyFeed, item)
		switch {
		case q == columnThrough(r.head.Life) && len(item.Value) == 8:
			x.through = fromBE64(string(item.Value))
		case strings.HasPrefix(q, "p"+be64(r.head.Life)) && len(q) == 17 && len(item.Value) == 16:
			x.extents = append(x.extents, extent{q, fromBE64(q[9:]), fromBE64(string(item.Value[:8])), fromBE64(string(item.Value[8:]))})
		case !strings.HasPrefix(q, "p") && !strings.HasPrefix(q, "t"):
			return nil, errExtent
		}
	}
	return x, nil
}

var errExtent = errors.New("bigtable: a cell of the feed's family that this program did not write")

// tell returns what a segment says to the rows of its runs. It may be said more than
// once, and late: the timestamp of what can be outdated is the segment's number, so
// an older word never hides a newer one.
func (g *segment) tell() (all []mutation) {
	place := int64(1)
	for _, r := range g.Ranges {
		m := bigtable.NewMutation()
		m.Set(familyFeed, columnExtent(r.Life, r.From), 0, []byte(be64(r.N)+be64(positionOf(g.number, place))))
		m.Set(familyFeed, columnThrough(r.Life), numbered(g.number), []byte(be64(r.From+r.N-1)))
		all = append(all, mutation{runKey(runstore.RunID(r.Run)), m, 128})
		place += r.N
	}
	return all
}

// numbered is a timestamp that orders by number: the client rounds to milliseconds.
func numbered(number int64) bigtable.Timestamp { return bigtable.Timestamp(number * 1000) }

// ReadFeed implements runstore.RunStore. An event is there soon after its commit; see
// sequencer.go.
func (s *Store) ReadFeed(ctx context.Context, after runstore.Position, limit int) (events []runstore.FeedEvent, err error) {
	err = s.op(ctx, "read feed", "", runstore.CheckFeed(after, limit), func(ctx context.Context) error {
		return steady(func() error {
			events, err = s.readFeed(ctx, int64(after), limit)
			return err
		})
	})
	return events, err
}

func (s *Store) readFeed(ctx context.Context, after int64, limit int) (events []runstore.FeedEvent, err error) {
	number, seen := after>>positionBits, after&maxSegment
	if after == 0 {
		number = firstSegment
	}
	for {
		var page []placed
		var last *segment
		next, err := s.follow(ctx, number, func(g *segment) bool {
			last = g
			at := int64(1)
			for _, r := range g.Ranges {
				for i := range r.N {
					if g.number != number || at > seen {
						page = append(page, placed{r, r.From + i, positionOf(g.number, at)})
					}
					at++
				}
			}
			return len(page) < limit
		})
		if err != nil {
			return nil, err
		}
		if last == nil || last.number == number && seen > last.events() && next == number+1 {
			from, err := s.whereNext(ctx, after, number, seen, last)
			if err != nil || from == 0 {
				return nil, err
			}
			if from != number {
				seen = 0
			}
			number = from
			continue
		}
		if len(page) > limit {
			page = page[:limit]
		}
		events, err = s.feedEvents(ctx, page)
		if err != nil || len(events) > 0 || len(page) == 0 {
			return events, err
		}
		// All of them were purged.
		end := page[len(page)-1].position
		number, seen = end>>positionBits, end&maxSegment
	}
}

// whereNext finds out about a position for which there is no segment, or whose segment
// does not reach so far: it is before the beginning of an epoch, or above all that the
// store knows. 0 means that nothing follows it yet.
func (s *Store) whereNext(ctx context.Context, after, number, seen int64, last *segment) (from int64, err error) {
	epochs, err := s.epochs(ctx)
	if err != nil {
		return 0, err
	}
	for _, e := range epochs.Epochs {
		if e.Base <= number {
			continue
		}
		if !epochs.Ended { // the log of the former epoch may still grow
			return 0, nil
		}
		// Now it cannot, so what is not there never will be.
		found, err := s.log(ctx, number, number+1)
		switch {
		case err != nil:
			return 0, err
		case last == nil && found[number] != nil:
			return number, nil
		case last != nil && found[number+1] != nil: // it came after the log was read, and before its end
			return number + 1, nil
		}
		return e.Base, nil
	}
	base := int64(firstSegment)
	if n := len(epochs.Epochs); n > 0 {
		base = epochs.Epochs[n-1].Base
	}
	if last == nil && number == base && seen == 0 { // nothing was written in this epoch yet
		return 0, nil
	}
	from = base
	if told, err := s.hint(ctx); err != nil {
		return 0, err
	} else if told > from { // the log is there up to this segment: its end is not far
		from = told
	}
	known := positionOf(from, 0)
	if _, err := s.follow(ctx, from, func(g *segment) bool {
		known = positionOf(g.number, g.events())
		return true
	}); err != nil {
		return 0, err
	}
	if after <= known {
		return 0, nil
	}
	return 0, &runstore.StoreBehindError{Field: "position", Presented: after, Known: known}
}

// placed is an event in the feed.
type placed struct {
	span
	seq, position int64
}
