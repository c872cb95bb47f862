package tail

import (
	"slices"
	"sort"

	"github.com/tapestore/tapestore/runstore"
)

// eventBytes is 256, what the ring counts for an event beside its strings and data: a
// FeedEvent has about 170 bytes, and its data, its run and its derived value are allocations.
const eventBytes = 256

// ring is a bounded ring buffer of the last events of the feed. Its fields belong to the lock
// of its tail.
//
//  1. Once started, it holds every event with a position above start and up to end, which is
//     what the feed reader has read.
//  2. Its pages never change. Eviction removes whole pages, the oldest first, so that a
//     subscriber keeps the page that it was given.
//  3. It is of one history of the store. When the store turns out to be behind, the ring ends,
//     and next takes its place.
type ring struct {
	started    bool
	start, end runstore.Position
	pages      []ringPage
	bytes      int
	changed    chan struct{} // closed by the next change
	// failures counts the reads that ended those who waited, the last one with err.
	failures int
	err      error
	// next follows a ring that has ended: the store knew no position above known.
	next  *ring
	known runstore.Position
}

// ringPage is one page that the feed reader has read.
type ringPage struct {
	events []FeedEvent // at least one
	bytes  int
}

func (p ringPage) last() runstore.Position { return p.events[len(p.events)-1].Position }

func newRing() *ring { return &ring{changed: make(chan struct{})} }

// change wakes everyone who waits for a change.
func (r *ring) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// begin starts the ring at the end of the feed.
func (r *ring) begin(end runstore.Position) {
	r.started, r.start, r.end = true, end, end
	r.change()
}

// add appends a page that was read behind the end of the ring, and evicts old pages until no
// more than limit bytes are left, or only this page.
func (r *ring) add(events []FeedEvent, limit int) {
	p := ringPage{events: events}
	for _, e := range events {
		p.bytes += bytesOf(e)
	}
	r.pages, r.bytes, r.end = append(r.pages, p), r.bytes+p.bytes, p.last()
	for r.bytes > limit && len(r.pages) > 1 {
		r.bytes, r.start = r.bytes-r.pages[0].bytes, r.pages[0].last()
		r.pages[0] = ringPage{}
		r.pages = r.pages[1:]
	}
	r.change()
}

// bytesOf estimates the memory that an event takes. A derived value counts as much as its event.
func bytesOf(e FeedEvent) int {
	n := eventBytes + len(e.Run) + len(e.Kind) + len(e.Owner) + len(e.Data)
	if e.Derived != nil {
		n *= 2
	}
	return n
}

// skip moves the end of the ring, which then holds no event.
func (r *ring) skip(end runstore.Position) {
	r.start, r.end = end, end
	r.pages, r.bytes = nil, 0
	r.change()
}

// replace ends the ring of a store that knows no position above known.
func (r *ring) replace(known runstore.Position) *ring {
	r.next, r.known = newRing(), known
	r.pages, r.bytes = nil, 0
	r.change()
	return r.next
}

// fail ends everyone who waits with err.
func (r *ring) fail(err error) {
	r.failures, r.err = r.failures+1, err
	r.change()
}

// covers reports whether every event behind a position is in the ring or still to come.
func (r *ring) covers(after runstore.Position) bool {
	return r.started && r.start <= after && after <= r.end
}

// page returns the events behind a position that the ring covers, of the first page that has any.
func (r *ring) page(after runstore.Position) []FeedEvent {
	i := sort.Search(len(r.pages), func(i int) bool { return r.pages[i].last() > after })
	if i == len(r.pages) {
		return nil
	}
	events := r.pages[i].events
	first := sort.Search(len(events), func(i int) bool { return events[i].Position > after })
	return slices.Clip(events[first:])
}
