package postgres

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core.
func (e *engine) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	if batch.History() != nil {
		return e.commitHistory(ctx, batch)
	}
	a, err := e.perform(ctx, commitRequest(batch))
	if err != nil {
		if batch.Purge {
			e.collectIfUnknown(err)
		}
		return done, err
	}
	if a.status != statusApplied && a.status != statusAppliedBefore {
		return done, a.explain(batch.Guards())
	}
	if batch.Purge {
		e.collectAfter(ctx, batch.Run())
	}
	return a.committed(), nil
}

// commitRequest returns the request for a batch.
func commitRequest(b runstore.Batch) *request {
	r := &request{run: b.Run(), size: sizeOf(b.Writes), write: newWrite(opCommit, b.Writes)}
	r.write.guard(b.Guards())
	if r.write.direct() {
		r.fence = b.Guards().Fence
	}
	if b.ID != "" {
		r.storeResult(rules.BatchResult(b.ID))
	}
	if b.Release || b.Purge {
		r.order = orderEnd
	}
	return r
}

// storeResult makes the server store the result of the write under a key. An empty key does
// nothing.
func (r *request) storeResult(name string) {
	if name != "" {
		r.resultKey = []byte(name)
	}
}

// sizeOf returns the bytes of data in events and records.
func sizeOf(w runstore.Writes) int {
	n := 0
	for _, e := range w.Events {
		n += len(e.Data)
	}
	for _, r := range w.Records {
		n += len(r.Value)
	}
	return n
}
