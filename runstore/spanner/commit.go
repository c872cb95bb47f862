package spanner

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core. It sends one statement that reads the state to decide on, then
// the commit.
func (s *engine) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	purged := purgedBy(batch)
	s.purger.claim(purged)
	err = s.transact(ctx, "commit", commits(batch, &done))
	s.afterPurges(ctx, err, purged)
	return done, err
}

// CommitMulti implements runstore.MultiCommitter. All batches share one transaction.
func (s *engine) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	done := make([]runstore.Committed, len(batches))
	requests := make([]*request, len(batches))
	multiCommitID := rules.MultiCommitID(batches)
	for i, b := range batches {
		requests[i] = commits(b, &done[i])
		requests[i].multiCommitID = multiCommitID
	}
	purged := purgedBy(batches...)
	s.purger.claim(purged)
	err := s.transact(ctx, "commit-multi", requests...)
	s.afterPurges(ctx, err, purged)
	if err != nil {
		return nil, err
	}
	return done, nil
}

// commits returns the request of a batch.
func commits(batch runstore.Batch, done *runstore.Committed) *request {
	guards, name := batch.Guards(), rules.BatchResult(batch.ID)
	if batch.Purge { // a purge deletes the results of callers' ids, so its own result cannot be kept
		name = ""
	}
	return &request{
		run: batch.Run(), name: name, keys: keysOf(guards, batch.Writes),
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
func keysOf(g runstore.Guards, w runstore.Writes) []runstore.RecordKey {
	seen := map[runstore.RecordKey]bool{}
	var keys []runstore.RecordKey
	add := func(k runstore.RecordKey) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	for _, v := range g.Versions {
		add(v.Key)
	}
	for _, r := range w.Records {
		add(r.Key)
	}
	return keys
}
