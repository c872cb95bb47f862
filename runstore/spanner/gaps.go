package spanner

import (
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// gaps are ranges of the feed without events that this handle has read: the rows of purged runs and
// of new epochs. ReadFeed reports no position for such rows, so a reader behind a large purge begins
// each call at the same position, and a reader of the newest events begins each call at the end. A
// call skips the gaps that earlier calls have read. So a reader whose calls are each too short for the
// whole purge still gets past it, and a reader at an end of the feed that was purged does not read
// those rows with every call.
//
// No event ever gets a position in a gap: later commits have later timestamps, and a purge keeps
// the rows of Feed, which the ranks count.
type gaps struct {
	mu  sync.Mutex
	all []gap // the one that was added, extended or skipped last is the last
}

// gap is a range of positions above after, up to last.
type gap struct{ after, last runstore.Position }

// maxGaps is 256. Readers that read among purged rows with small pages leave many gaps, and must not
// push out that of a reader behind a large purge.
const maxGaps = 256

// skip returns the position at which a reader of the events behind after may begin.
func (g *gaps) skip(after runstore.Position) runstore.Position {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		used, ok := g.use(func(o gap) bool { return o.after <= after && after < o.last })
		if !ok {
			return after
		}
		after = used.last
	}
}

// skipBack returns the window before which a reader of the feed may go on, that reads backwards and
// has read the windows from before on.
func (g *gaps) skipBack(before int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := position(before, 0)
	for {
		used, ok := g.use(func(o gap) bool { return o.after < at && at <= o.last })
		if !ok {
			break
		}
		at = used.after
	}
	window, rank := split(at)
	if rank > 0 { // the gap begins within its first window
		window++
	}
	return window
}

// use returns a gap that is wanted, and makes it the last. g.mu must be held.
func (g *gaps) use(wanted func(gap) bool) (used gap, ok bool) {
	i := slices.IndexFunc(g.all, wanted)
	if i < 0 {
		return gap{}, false
	}
	used = g.all[i]
	g.all = append(slices.Delete(g.all, i, i+1), used)
	return used, true
}

// add adds a gap, joined with those that it overlaps or adjoins. It adds none if last is not above after.
func (g *gaps) add(after, last runstore.Position) {
	if last <= after {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := gap{after, last}
	g.all = slices.DeleteFunc(g.all, func(o gap) bool {
		joined := o.after <= one.last && one.after <= o.last
		if joined {
			one = gap{min(o.after, one.after), max(o.last, one.last)}
		}
		return joined
	})
	if g.all = append(g.all, one); len(g.all) > maxGaps {
		g.all = slices.Delete(g.all, 0, 1)
	}
}
