package bigtable

import (
	"context"
	"errors"
)

// A read of the feed is bounded in requests: once it has an event, it ends before the step that could
// make them too many. A read without an event goes on, because an empty result means that nothing
// follows yet: the caller's context bounds it, each of its requests is bounded, and the handle remembers
// its progress (purgedStretches).

const (
	// maxReadRequests is how many requests a read makes that has an event. 32: enough for 1000
	// events of some 250 runs, or for sealed events or large values of 100 runs, and a third of a
	// second at 10 ms a request.
	maxReadRequests = 32
	// chunkRequests is how many requests feedChunk and withoutPurged make at most, unless blocks
	// were compacted: four for 4, 8, 16 and 32 pages of the log, four for 64 each of the rest of
	// maxChunk, and one for the heads of the runs.
	chunkRequests = 9
	// groupRequests is how many requests the events of runsAtOnce runs take: for the rows of the
	// runs, for segments of their journals and for large values.
	groupRequests = 3
)

// errBudgetSpent means that a read of the feed has an event and ends before its next step.
var errBudgetSpent = errors.New("bigtable: the read of the feed has made enough requests")

// readBudget counts the requests of a read of the feed.
type readBudget struct {
	requests int
	hasEvent bool
}

type budgetKey struct{}

// withBudget returns a context with a budget: readRows counts its requests there.
func withBudget(ctx context.Context) (context.Context, *readBudget) {
	b := &readBudget{}
	return context.WithValue(ctx, budgetKey{}, b), b
}

// budgetOf returns the budget of a context, or nil for operations that have none.
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

// ends reports whether the read ends before a step of n requests.
func (b *readBudget) ends(n int) bool {
	return b != nil && b.hasEvent && b.requests+n > maxReadRequests
}
