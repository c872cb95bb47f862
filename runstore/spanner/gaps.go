package spanner

import (
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// gaps are ranges of the feed without events that this handle has read: the rows of purged runs and
// of new epochs. ReadFeed reports no position for such rows, so a reader behind a large purge begins
// each call at the same position. A call skips the gaps that earlier calls have read. So a reader
// whose calls are each too short for the whole purge still gets past it, and a reader at an end of
// the feed that was purged does not read those rows with every call.
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
		i := slices.IndexFunc(g.all, func(o gap) bool { return o.after <= after && after < o.last })
		if i < 0 {
			return after
		}
		used := g.all[i]
		g.all = append(slices.Delete(g.all, i, i+1), used)
		after = used.last
	}
}

// add adds a gap. A gap that it continues becomes longer.
func (g *gaps) add(after, last runstore.Position) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := gap{after, last}
	if i := slices.IndexFunc(g.all, func(o gap) bool { return o.after <= after && after <= o.last }); i >= 0 {
		one = gap{g.all[i].after, max(g.all[i].last, last)}
		g.all = slices.Delete(g.all, i, i+1)
	}
	if g.all = append(g.all, one); len(g.all) > maxGaps {
		g.all = slices.Delete(g.all, 0, 1)
	}
}
