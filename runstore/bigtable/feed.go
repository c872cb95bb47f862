package bigtable

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// The feed is a log of segments, rows that do not change once they are complete, except that those
// of purged runs are removed (compact.go). Each has a number and names ranges of events; a position
// is the number and an event's place in the segment. A handle creates the row of the next number if
// it is absent: of several that try, one succeeds. All handles append to the segment while it is a page
// (page.go). So there is one log without a lease, whichever handle writes to it and however late. A handle
// that appends has read all earlier segments, so it knows which events the log has, and names only later ones.
// See sequencer.go.

const (
	positionBits  = 10
	maxPageEvents = 1<<positionBits - 1 // events of one segment
	firstPage     = 1
)

// feedPage is a row of the log.
type feedPage struct {
	By      uint64       `json:"by"`             // who made it
	Next    int64        `json:"next,omitempty"` // the number that follows, if not its own plus 1: an epoch has ended, or a block is compacted
	Ranges  []eventRange `json:"ranges,omitempty"`
	WasOpen bool         `json:"paged,omitempty"` // the segment was a page, so its runs have formatPages
	number  int64
	damage  error // the row is there and cannot be decoded

	*openState     // nil: the segment is complete
	created    int // how many of the ranges the segment was created with
}

// eventRange is a range of a run's events.
type eventRange struct {
	Run        []byte `json:"run"`
	Generation int64  `json:"life"`
	From       int64  `json:"from"`
	N          int64  `json:"n"`
}

func (g *feedPage) next() int64 {
	if g.Next != 0 {
		return g.Next
	}
	return g.number + 1
}

// events returns how many events the segment names, or may name if it cannot be decoded.
func (g *feedPage) events() (n int64) {
	if g.damage != nil {
		return maxPageEvents
	}
	for _, r := range g.Ranges {
		n += r.N
	}
	return n
}

func positionOf(number, place int64) int64 { return number<<positionBits | place }

// readPages reads the segments of the log that there are among numbers.
func (s *engine) readPages(ctx context.Context, numbers ...int64) (map[int64]*feedPage, error) {
	keys := make([]string, len(numbers))
	for i, n := range numbers {
		keys[i] = logKey(n)
	}
	found := map[int64]*feedPage{}
	err := s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		g, value := &feedPage{}, cell(r, familyOther, "")
		if value == nil { // an append that came after the page had been removed: no segment
			found[fromBE64(r.Key()[len(r.Key())-8:])] = nil
			return nil
		}
		if err := json.Unmarshal(value, g); err != nil {
			g = &feedPage{damage: corrupt(fmt.Errorf("segment %d of the feed: %w", fromBE64(r.Key()[len(r.Key())-8:]), err))}
		}
		g.number = fromBE64(r.Key()[len(r.Key())-8:])
		if g = g.withPage(cell(r, familyOther, columnPage)); g.damage != nil {
			s.skipDamaged("", g.damage)
		}
		found[g.number] = g
		return nil
	})
	return found, err
}

// follow calls f for the segments from number on. It stops where there is no segment, after an open page,
// and when f returns false. It returns the number at which to continue, which is that of the open page.
func (s *engine) follow(ctx context.Context, number int64, f func(g *feedPage) bool) (next int64, err error) {
	return s.followBy(ctx, number, 4, f)
}

// pagesPerRequest is how many segments one request reads.
const pagesPerRequest = 64

// followBy is follow with a first request for so many segments. Behind a block that was compacted
// it asks for the first segments of the blocks that follow, too.
func (s *engine) followBy(ctx context.Context, number, ahead int64, f func(g *feedPage) bool) (next int64, err error) {
	for blocks := int64(0); ; ahead = min(2*ahead, pagesPerRequest) {
		asked := map[int64]bool{blockStart(number): true}
		for n := range ahead {
			asked[number+n] = true
		}
		for n := range blocks {
			asked[blockStart(number)+(n+1)*logBlock] = true
		}
		if budgetOf(ctx).ends(1 + groupRequests) {
			return number, errBudgetSpent
		}
		found, err := s.readPages(ctx, slices.Collect(maps.Keys(asked))...)
		if err != nil {
			return number, err
		}
		for asked[number] || asked[blockStart(number)] {
			if next, skips := found[blockStart(number)].skips(number); skips {
				number, blocks = next, pagesPerRequest
				continue
			}
			g := found[number]
			if !asked[number] {
				break
			}
			if g == nil {
				return number, nil
			}
			if g.Next == blockStart(number)+logBlock {
				blocks = pagesPerRequest
			}
			if number = g.next(); g.isOpen() {
				number = g.number
			}
			if !f(g) || g.isOpen() {
				return number, nil
			}
		}
	}
}

// timestampOf is a timestamp that orders by number: the client rounds to milliseconds.
func timestampOf(number int64) bigtable.Timestamp { return bigtable.Timestamp(number * 1000) }

// numberOf is the inverse of numbered.
func numberOf(at bigtable.Timestamp) int64 { return int64(at) / 1000 }

// feedRereads is how often a page of the feed is read again of which an event was not where
// its run's row said. An event moves twice at most: it is sealed, and purged.
const feedRereads = 8

// ReadFeed implements adapter.Core. The feed has an event soon after its commit; see sequencer.go. A
// page that has an event ends after pageRequests requests, except the newest, which has no such bound.
func (s *engine) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	read := 0
	bounded, budget := withBudget(ctx)
	return retryMissing(func() ([]runstore.FeedEvent, error) {
		final := read == feedRereads
		read++
		if q.Newest {
			return s.readNewest(ctx, q.Limit, final)
		}
		budget.hasEvent = false
		return s.readFeed(bounded, int64(q.After), q.Limit, final)
	})
}

// purgedStretches remembers the stretches of the feed that hold only events of purged runs, by the
// positions that readers came from. So a reader whose context ended on the way through one goes
// on where it was. It is right for ever: no event returns to a position.
type purgedStretches struct {
	mu      sync.Mutex
	through map[int64]int64
}

// maxPurgedStretches bounds the stretches that a handle remembers.
const maxPurgedStretches = 256

// of returns the last position of the stretch behind a position, or the position.
func (p *purgedStretches) of(after int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(after, p.through[after])
}

func (p *purgedStretches) add(after, through int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.through == nil || len(p.through) >= maxPurgedStretches {
		p.through = map[int64]int64{}
	}
	p.through[after] = through
}

// maxChunk is how many events a reader of the feed looks up together: of a purged stretch whose
// segments have one event each that takes five requests, after which the reader has come on.
const maxChunk = 4 * pagesPerRequest

// readFeed reads a page, chunk by chunk. While it meets only events of purged runs it goes on,
// by ever larger chunks: one request for up to 64 segments, and one for the heads of their runs.
// An error behind the first event ends the page, and so does the bound of its requests. For
// final see feedEvents.
func (s *engine) readFeed(ctx context.Context, after int64, limit int, final bool) (events []runstore.FeedEvent, err error) {
	from := s.purgedStretches.of(after)
	number, seen := from>>positionBits, from&maxPageEvents
	if from == 0 {
		number = firstPage
	}
	if next, skips := s.skipGap(number); skips {
		number, seen = next, 0
	}
	size, purged := int64(0), from != after // the reader is in a stretch that it met before
	most, rows := min(limit, maxChunk), int64(4)
	if purged {
		most, rows = maxChunk, pagesPerRequest
	}
	for ; ; rows = pagesPerRequest {
		if budgetOf(ctx).ends(chunkRequests + groupRequests) {
			return events, nil
		}
		page, last, next, err := s.feedChunk(ctx, number, seen, most, rows)
		if len(events) > 0 && (err != nil || len(page) == 0) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		if last == nil || last.number == number && seen > last.events() && next <= number+1 {
			from, err := s.resolvePosition(ctx, after, number, seen, last)
			if err != nil || from == 0 {
				return nil, err
			}
			if from != number {
				seen = 0
			}
			number = from
			continue
		}
		if len(page) == 0 {
			return nil, nil
		}
		atEnd := len(page) < most
		if page = page[:min(len(page), most)]; purged {
			end := page[len(page)-1].position
			if page, err = s.withoutPurged(ctx, page); err != nil {
				return nil, err
			}
			if len(page) == 0 {
				s.purgedStretches.add(after, end)
				number, seen, most = end>>positionBits, end&maxPageEvents, min(4*most, maxChunk)
				continue
			}
			s.purgedStretches.add(after, page[0].position-1)
		}
		page = page[:min(len(page), limit-len(events))]
		end := page[len(page)-1].position
		more, total, err := s.feedEvents(ctx, page, size, final)
		if events, size = append(events, more...), total; err != nil && len(events) == 0 {
			return nil, err
		}
		if err != nil || len(events) >= limit || size > runstore.MaxPageBytes || atEnd && len(events) > 0 {
			return events, nil
		}
		if purged = len(events) == 0; purged {
			s.purgedStretches.add(after, end)
			most = min(4*most, maxChunk)
		}
		number, seen = end>>positionBits, end&maxPageEvents
	}
}

// feedChunk returns the events behind place seen of a segment: at least most, if there are so
// many, and up to those of one segment more. last is the last segment that it read, and next
// the number behind it. The first request reads so many rows.
func (s *engine) feedChunk(ctx context.Context, number, seen int64, most int, rows int64) (page []loggedEvent, last *feedPage, next int64, err error) {
	next, err = s.followBy(ctx, number, rows, func(g *feedPage) bool {
		last = g
		if g.number != number {
			seen = 0
		}
		page = g.appendTo(page, seen)
		return len(page) < most
	})
	return page, last, next, err
}

// appendTo appends the segment's events behind a place of it to a page.
func (g *feedPage) appendTo(page []loggedEvent, seen int64) []loggedEvent {
	if g.damage != nil && seen < maxPageEvents {
		page = append(page, loggedEvent{position: positionOf(g.number, maxPageEvents), damage: g.damage})
	}
	at := int64(1)
	for _, r := range g.Ranges {
		for i := range r.N {
			if at > seen {
				page = append(page, loggedEvent{eventRange: r, seq: r.From + i, position: positionOf(g.number, at)})
			}
			at++
		}
	}
	return page
}

// resolvePosition finds out about a position for which there is no segment, or whose segment
// does not reach so far: it is before the beginning of an epoch, or above all that the
// store knows. 0 means that nothing follows it yet.
func (s *engine) resolvePosition(ctx context.Context, after, number, seen int64, last *feedPage) (from int64, err error) {
	epochs, err := s.readEpochs(ctx)
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
		found, err := s.readPages(ctx, number, number+1)
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
	base := int64(firstPage)
	if n := len(epochs.Epochs); n > 0 {
		base = epochs.Epochs[n-1].Base
	}
	if last == nil && number == base && seen == 0 { // nothing was written in this epoch yet
		return 0, nil
	}
	hint, err := s.hint(ctx)
	if err != nil {
		return 0, err
	}
	from = max(base, hint) // the log is there up to the hint's segment: its end is not far
	known := positionOf(from, 0)
	if _, err := s.follow(ctx, from, func(g *feedPage) bool {
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

// loggedEvent is an event in the feed.
type loggedEvent struct {
	eventRange
	seq, position int64
	damage        error // of the segment: the event, and how many there are, is not known
}
