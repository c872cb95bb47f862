package tail

import (
	"slices"
	"sort"

	"github.com/tapestore/tapestore/runstore"
)

// eventBytes is 256 bytes, the ring's overhead of an event besides its strings and data: a
// FeedEvent takes about 170 bytes, and its data, its run and its derived value are allocations.
const eventBytes = 256

// ring is a bounded ring buffer of the latest events of the feed. The lock of its tail guards its
// fields. Invariants:
//
//  1. Once started, it holds every event with a position above start and up to end, which is the
//     position of the feed reader.
//  2. Its pages are immutable. Eviction removes whole pages, oldest first, so a subscriber keeps
//     the page that it was given.
//  3. It belongs to one history of the store. When the store turns out to be behind, the ring ends
//     and next replaces it.
type ring struct {
	started    bool
	start, end runstore.Position
	pages      []ringPage
	bytes      int
	changed    chan struct{} // closed by the next change
	// failures counts the failed reads that ended the waiting subscribers; err is the last error.
	failures int
	err      error
	// next replaces a ring that has ended because the store had no position above known.
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

// change wakes every subscriber that waits for a change.
func (r *ring) change() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// begin starts the ring at the end of the feed.
func (r *ring) begin(end runstore.Position) {
	r.started, r.start, r.end = true, end, end
	r.change()
}

// add appends a page that follows the end of the ring, and evicts old pages until at most limit
// bytes are left, or only this page.
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

// skip empties the ring and moves it to a new end.
func (r *ring) skip(end runstore.Position) {
	r.start, r.end = end, end
	r.pages, r.bytes = nil, 0
	r.change()
}

// replace ends the ring, because the store has no position above known, and returns its
// replacement.
func (r *ring) replace(known runstore.Position) *ring {
	r.next, r.known = newRing(), known
	r.pages, r.bytes = nil, 0
	r.change()
	return r.next
}

// fail ends every waiting subscriber with err.
func (r *ring) fail(err error) {
	r.failures, r.err = r.failures+1, err
	r.change()
}

// covers reports whether every event after a position is in the ring or still to come.
func (r *ring) covers(after runstore.Position) bool {
	return r.started && r.start <= after && after <= r.end
}

// page returns the events after a position that the ring covers, from the first page that has any.
func (r *ring) page(after runstore.Position) []FeedEvent {
	i := sort.Search(len(r.pages), func(i int) bool { return r.pages[i].last() > after })
	if i == len(r.pages) {
		return nil
	}
	events := r.pages[i].events
	first := sort.Search(len(events), func(i int) bool { return events[i].Position > after })
	return slices.Clip(events[first:])
}
