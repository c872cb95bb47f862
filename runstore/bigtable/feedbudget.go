package bigtable

import (
	"context"
	"errors"
)

// A page of the feed is bounded in requests: once it has an event, it ends before the step that
// could make them too many. A page without an event goes on, since an empty page says that
// nothing follows yet: the caller's context bounds it, each of its requests is bounded, and the
// handle remembers how far it came (passed).

const (
	// maxReadRequests is after how many requests a page ends that has an event. A page of 1000
	// events of some 250 runs fits, and one of sealed events or large values of 100 runs; at
	// 10 ms for a request, a page takes a third of a second.
	maxReadRequests = 32
	// chunkRequests is how many feedChunk and withoutPurged take at most, where no block of the
	// log was removed: the first requests of a page for 4, 8, 16 and 32 segments, four for the 64
	// each that are left of maxChunk, and one for the heads of the runs.
	chunkRequests = 9
	// groupRequests is how many the events of runsAtOnce runs take: for the rows of the runs,
	// for segments of the journal and for large values.
	groupRequests = 3
)

// errBudgetSpent says that a page of the feed has an event, and ends before the next request.
var errBudgetSpent = errors.New("bigtable: the page of the feed ends")

// readBudget counts the requests of a page of the feed.
type readBudget struct {
	requests int
	hasEvent bool
}

type budgetKey struct{}

// withBudget returns a context whose requests by readList are counted for a page of the feed.
func withBudget(ctx context.Context) (context.Context, *readBudget) {
	b := &readBudget{}
	return context.WithValue(ctx, budgetKey{}, b), b
}

// budgetOf returns the budget of a context, or nil: readList serves other operations, too.
func budgetOf(ctx context.Context) *readBudget {
	b, _ := ctx.Value(budgetKey{}).(*readBudget)
	return b
}

// spend counts a request.
func (b *readBudget) spend() {
	if b != nil {
		b.requests++
	}
}

// ends reports whether the page ends before a step of n requests.
func (b *readBudget) ends(n int) bool {
	return b != nil && b.hasEvent && b.requests+n > maxReadRequests
}
