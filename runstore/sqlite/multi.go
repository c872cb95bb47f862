package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CommitMulti implements runstore.MultiCommitter.
func (e *engine) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	done, err := write(ctx, e, func(tx *tx) ([]runstore.Committed, error) {
		multiCommitID := rules.MultiCommitID(batches)
		done, alreadyApplied, err := tx.lookUpResults(batches, multiCommitID)
		if err != nil || alreadyApplied {
			return results(done), err
		}
		// An operation that refuses must not have written yet, so all guards are checked first.
		rows := make([]*row, len(batches))
		for i, b := range batches {
			if done[i] != nil {
				continue
			}
			if rows[i], err = tx.guarded(b); err != nil {
				return nil, err
			}
		}
		for i, b := range batches {
			if done[i] != nil {
				continue
			}
			fresh, err := tx.applyBatch(rows[i], b, multiCommitID)
			if err != nil {
				// All guards held above, so this is no refusal, and earlier batches are written:
				// the error must roll the transaction back.
				return nil, fmt.Errorf("batches[%d]: %v", i, err)
			}
			done[i] = &fresh
		}
		return results(done), nil
	})
	if err == nil {
		e.sweepAfter(ctx, batches...)
	}
	return done, err
}

// lookUpResults returns the first result of each batch that was applied before. alreadyApplied is
// true if one of them was part of this same commit: then all batches were, and nothing is applied.
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

// results returns the results of a commit of several runs. For a run that has forgotten its result,
// only Replayed is set.
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
