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

// The feed is a log of pages, one row for each. A page has a number and names ranges of events; the
// position of an event is the number of its page and its place in the page. A handle creates the row of
// the next number if it is absent: of several handles that try, one succeeds. The last page is open: all
// handles append to it (feedpage.go). The other pages are complete, and do not change any more, except
// that pages of purged runs are removed (compact.go).
//
// So there is one log, without a lease, whichever handle writes to it and however late. A handle that
// appends has read all earlier pages. So it knows which events the log has, and appends only later ones
// (sequencer.go).

const (
	positionBits  = 10
	maxPageEvents = 1<<positionBits - 1 // events of one page
	firstPage     = 1
)

// feedPage is a page of the log.
type feedPage struct {
	By      uint64       `json:"by"`             // a random number of the request that created the page
	Next    int64        `json:"next,omitempty"` // the number of the next page if it is not number+1: an epoch ends, or a block is compacted
	Ranges  []eventRange `json:"ranges,omitempty"`
	WasOpen bool         `json:"paged,omitempty"` // the page was open, so its runs have formatOpenPages
	number  int64
	damage  error // the row exists and cannot be decoded

	*openState     // nil if the page is complete
	created    int // how many of the ranges the page was created with
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

// events returns how many events the page names, or may name if it cannot be decoded.
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

// readPages reads the pages of the log that exist among numbers.
func (s *engine) readPages(ctx context.Context, numbers ...int64) (map[int64]*feedPage, error) {
	found, _, err := s.readPagesAnd(ctx, nil, numbers)
	return found, err
}

// readPagesAndHint is readPages and hint in one request.
func (s *engine) readPagesAndHint(ctx context.Context, numbers []int64) (found map[int64]*feedPage, hint int64, err error) {
	return s.readPagesAnd(ctx, []string{kindHint}, numbers)
}

func (s *engine) readPagesAnd(ctx context.Context, keys []string, numbers []int64) (found map[int64]*feedPage, hint int64, err error) {
	for _, n := range numbers {
		keys = append(keys, logKey(n))
	}
	found = map[int64]*feedPage{}
	err = s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		if r.Key() == kindHint {
			hint = hintOf(r)
			return nil
		}
		g, value := &feedPage{}, cell(r, familyOther, "")
		if value == nil { // an append that arrived after the page had been removed
			found[fromBE64(r.Key()[len(r.Key())-8:])] = nil
			return nil
		}
		if err := json.Unmarshal(value, g); err != nil {
			g = &feedPage{damage: corrupt(fmt.Errorf("page %d of the feed's log: %w", fromBE64(r.Key()[len(r.Key())-8:]), err))}
		}
		g.number = fromBE64(r.Key()[len(r.Key())-8:])
		if g = g.withPage(cell(r, familyOther, columnPage)); g.damage != nil {
			s.skipDamaged("", g.damage)
		}
		found[g.number] = g
		return nil
	})
	return found, hint, err
}

// follow calls f for the pages from number on. It stops where there is no page, after an open page, and
// when f returns false. It returns the number at which to continue; that of an open page is its own.
func (s *engine) follow(ctx context.Context, number int64, f func(g *feedPage) bool) (next int64, err error) {
	return s.followBy(ctx, number, 4, f)
}

// pagesPerRequest is how many pages one request reads.
const pagesPerRequest = 64

// followBy is follow with a first request for ahead pages. After a block that was compacted it also reads the
// first pages of the next blocks.
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

// timestampOf returns the timestamp of a cell that is ordered by a number: of a page, or a stamp. The client
// rounds timestamps to milliseconds.
func timestampOf(number int64) bigtable.Timestamp { return bigtable.Timestamp(number * 1000) }

// numberOf is the inverse of timestampOf.
func numberOf(at bigtable.Timestamp) int64 { return int64(at) / 1000 }

// feedRereads is how often ReadFeed reads again because an event was not where its run's row said. 8: an
// event moves twice at most, when it is sealed and when it is purged.
const feedRereads = 8

// ReadFeed implements adapter.Core. The feed has an event soon after its commit; see sequencer.go. A
// read that has an event ends after maxReadRequests requests, except one of the newest events.
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

// purgedStretches remembers stretches of the feed that have only events of purged runs, by the positions
// from which readers came. So a reader whose context ended within such a stretch continues there at its
// next call. An entry counts in the epoch in which it was found: a failover may lose a purge.
type purgedStretches struct {
	mu      sync.Mutex
	epoch   int64
	through map[int64]int64
}

// maxPurgedStretches bounds the stretches that a handle remembers.
const maxPurgedStretches = 256

// of returns the last position of the stretch after a position, or the position itself.
func (p *purgedStretches) of(epoch, after int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != epoch {
		return after
	}
	return max(after, p.through[after])
}

// add remembers a stretch that was read after the handle knew the epoch.
func (p *purgedStretches) add(epoch, after, through int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.through == nil || p.epoch != epoch || len(p.through) >= maxPurgedStretches {
		p.epoch, p.through = epoch, map[int64]int64{}
	}
	p.through[after] = through
}

// maxChunk is how many events of a purged stretch ReadFeed looks up together. 256: if each page has one
// event, that takes five requests, after which purgedStretches has the reader's progress.
const maxChunk = 4 * pagesPerRequest

// readFeed reads events chunk by chunk. While it meets only events of purged runs it goes on, with ever
// larger chunks: one request for up to 64 pages, and one for the heads of their runs. Once it has an
// event, an error ends the read without the error, and so does the bound of its requests. For final see
// feedEvents.
func (s *engine) readFeed(ctx context.Context, after int64, limit int, final bool) (events []runstore.FeedEvent, err error) {
	epoch := s.observe().epoch
	from := s.purgedStretches.of(epoch, after)
	number, seen := from>>positionBits, from&maxPageEvents
	if number < firstPage {
		number, seen = firstPage, 0
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
				s.purgedStretches.add(epoch, after, end)
				number, seen, most = end>>positionBits, end&maxPageEvents, min(4*most, maxChunk)
				continue
			}
			s.purgedStretches.add(epoch, after, page[0].position-1)
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
			s.purgedStretches.add(epoch, after, end)
			most = min(4*most, maxChunk)
		}
		number, seen = end>>positionBits, end&maxPageEvents
	}
}

// feedChunk returns the events after place seen of a page: at least most, if there are so many, and up to one
// page more. last is the last page that it read, and next the number after it. The first request reads rows
// pages.
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

// appendTo appends the events of the page after place seen to a list.
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

// resolvePosition returns the page at which a reader continues whose position is in no page. It returns 0 if
// nothing follows the position yet, the first page of an epoch if the position is between two epochs, and a
// StoreBehindError if the position is above all that the store has.
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
		// It has ended, so a page that is absent now stays absent.
		found, err := s.readPages(ctx, number, number+1)
		switch {
		case err != nil:
			return 0, err
		case last == nil && found[number] != nil:
			return number, nil
		case last != nil && found[number+1] != nil: // it was created after the read, and before the log ended
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
	from = max(base, hint) // the log exists up to the hint, and its end is not far
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

// loggedEvent is an event as the log names it.
type loggedEvent struct {
	eventRange
	seq, position int64
	damage        error // of the page; then neither the event nor the number of events is known
}
