package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

// CommitMulti implements runstore.MultiCommitter.
func (s *Store) CommitMulti(ctx context.Context, batches []runstore.Batch) (done []runstore.Committed, err error) {
	defer s.waiters.AfterBatches(&err, batches...)
	done, err = write(ctx, s, "commit", "", runstore.CheckMulti(batches), func(tx *tx) ([]runstore.Committed, error) {
		multiCommitID := rules.MultiCommitID(batches)
		done, alreadyApplied, err := tx.lookUpResults(batches, multiCommitID)
		if err != nil || alreadyApplied {
			return results(done), err
		}
		// An operation that refuses must not have written yet: all guards come first.
		for i, b := range batches {
			if done[i] != nil {
				continue
			}
			if _, err := tx.guarded(b); err != nil {
				return nil, err
			}
		}
		for i, b := range batches {
			if done[i] != nil {
				continue
			}
			fresh, err := tx.checkAndApply(b, multiCommitID)
			if err != nil {
				// The guards held a moment ago, so this is no refusal, and the batches
				// before it are written: the transaction must go.
				return nil, fmt.Errorf("batches[%d]: %v", i, err)
			}
			done[i] = &fresh
		}
		return results(done), nil
	})
	if err == nil {
		s.sweepAfter(ctx, batches...)
	}
	return done, err
}

// recall returns the first result of each batch that was applied before, and whether
// one of them was part of this very commit: then all were, and nothing is to be applied.
func (tx *tx) lookUpResults(batches []runstore.Batch, multiCommitID []byte) (first []*runstore.Committed, alreadyApplied bool, err error) {
	first = make([]*runstore.Committed, len(batches))
	for i, b := range batches {
		was, err := tx.replay(b.Run(), rules.BatchResult(b.ID))
		if err != nil {
			return nil, false, err
		}
		if was != nil {
			first[i] = &was.Committed
			alreadyApplied = alreadyApplied || multiCommitID != nil && bytes.Equal(was.MultiCommitID, multiCommitID)
		}
	}
	return first, alreadyApplied, nil
}

// results are those of a commit of several runs; a run that has forgotten its own has
// nothing to tell but that it was made.
func results(done []*runstore.Committed) []runstore.Committed {
	all := make([]runstore.Committed, len(done))
	for i, one := range done {
		if one == nil {
			one = &runstore.Committed{Replayed: true}
		}
		all[i] = *one
	}
	return all
}
