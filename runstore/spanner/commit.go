package spanner

import (
	"context"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core. It sends one statement that reads the state to decide on, then
// the commit.
func (s *engine) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	done, err := s.commit(ctx, "commit", nil, batch)
	return done[0], err
}

// CommitMulti implements runstore.MultiCommitter. All batches share one transaction.
func (s *engine) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return s.commit(ctx, "commit-multi", rules.MultiCommitID(batches), batches...)
}

// commit applies batches in one transaction, and then deletes the rows of the runs that they purge.
func (s *engine) commit(ctx context.Context, tag string, multiCommitID []byte, batches ...runstore.Batch) ([]runstore.Committed, error) {
	done := make([]runstore.Committed, len(batches))
	requests := make([]*request, len(batches))
	var purged []runstore.RunID
	for i, b := range batches {
		requests[i] = commits(b, &done[i])
		requests[i].multiCommitID = multiCommitID
		if b.Purge {
			purged = append(purged, b.Run())
		}
	}
	s.purger.claim(purged, 1)
	err := s.transact(ctx, tag, requests...)
	if err == nil {
		s.afterPurge(ctx, purged)
	}
	s.purger.claim(purged, -1)
	if len(purged) > 0 && runstore.OutcomeOf(err) != runstore.NotApplied {
		s.purger.start()
	}
	return done, err
}

// commits returns the request of a batch.
func commits(batch runstore.Batch, done *runstore.Committed) *request {
	guards, name := batch.Guards(), rules.BatchResult(batch.ID)
	repeatOf := ""
	if batch.Purge {
		name, repeatOf = "", name
	}
	return &request{
		run: batch.Run(), name: name, repeatOf: repeatOf, keys: keysOf(guards, batch.Writes),
		decide: func(g *guarded, former *result) (*edit, error) {
			switch {
			case former != nil: // also if the run has changed or was purged since
				*done = former.committed(g)
				return nil, nil
			case g.alreadyApplied: // by a commit over several runs; this run was purged or has evicted its result
				*done = runstore.Committed{Replayed: true}
				return nil, nil
			}
			h, err := g.judged()
			if err != nil {
				return nil, err
			}
			e := newEdit(g)
			e.boundByStrictLease(guards.Fence, h)
			if err := h.Guards(guards, e.now, g.version); err != nil {
				return nil, err
			}
			e.apply(batch.Writes, guards.Fence.Token(), guards.Fence.Owner())
			*done = e.done
			return e, nil
		},
	}
}

// keysOf returns the keys, without duplicates, of all records that the guards name or the writes
// change.
func keysOf(g runstore.Guards, w runstore.Writes) (keys []runstore.RecordKey) {
	for _, v := range g.Versions {
		keys = append(keys, v.Key)
	}
	for _, r := range w.Records {
		keys = append(keys, r.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
