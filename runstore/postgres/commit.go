package postgres

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

// Commit implements runstore.RunStore.
func (s *Store) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	defer s.notifier.waiters.AfterBatches(&err, batch)
	err = s.op(ctx, "commit", batch.Run(), batch.Check(), func() error {
		a, err := s.perform(ctx, commitRequest(batch))
		if err != nil {
			return err
		}
		if a.verdict != applied && a.verdict != appliedBefore {
			return a.explain(batch.Guards())
		}
		done = a.committed()
		return nil
	})
	return done, err
}

// commitRequest chooses the statement for a batch.
func commitRequest(b runstore.Batch) *request {
	r := &request{run: b.Run(), size: sizeOf(b.Writes)}
	if g := b.Guards(); b.ID == "" && onlyFence(g) && onlyEvents(b.Writes) {
		r.fence, r.events = g.Fence, b.Events
		return r
	}
	r.write = newWrite(opCommit, b.Run(), b.Writes)
	r.write.guard(b.Guards())
	if b.ID != "" {
		r.remember(rules.BatchResult(b.ID))
	}
	if b.Release || b.Purge {
		r.order = ends
	}
	return r
}

// remember makes the server remember the result of a write under a name, unless that is
// empty.
func (r *request) remember(name string) {
	if name != "" {
		r.result = []byte(name)
		r.write.result = r.result
	}
}

func onlyFence(g runstore.Guards) bool {
	return !g.Fence.IsZero() && g.Token == nil && len(g.Versions) == 0 && len(g.Statuses) == 0 && g.NextSeq == 0
}

func onlyEvents(w runstore.Writes) bool {
	return len(w.Events) > 0 && len(w.Records) == 0 && w.Status == nil && w.Runnable.IsZero() && !w.Release && !w.Purge
}

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
