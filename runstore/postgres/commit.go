package postgres

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements runstore.RunStore.
func (s *Store) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	defer s.notifier.waiters.AfterBatches(&err, batch)
	err = s.op(ctx, "commit", batch.Run(), batch.Check(), func() error {
		a, err := s.perform(ctx, commitRequest(batch))
		if err != nil {
			return err
		}
		if a.status != statusApplied && a.status != statusAppliedBefore {
			return a.explain(batch.Guards())
		}
		done = a.committed()
		return nil
	})
	if err == nil && batch.Purge {
		s.collectAfter(ctx, batch.Run())
	}
	return done, err
}

// commitRequest returns the request for a batch.
func commitRequest(b runstore.Batch) *request {
	r := &request{run: b.Run(), size: sizeOf(b.Writes), write: newWrite(opCommit, b.Run(), b.Writes)}
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
		r.write.resultKey = r.resultKey
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
