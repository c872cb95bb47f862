package tape

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// finishCompaction completes a compaction that has begun and returns its result, or reports that
// another call completed it. A commit that loses to another caller or to a change of a row starts a
// new round from the state that the record then has.
func (t *Tape) finishCompaction(ctx context.Context, id runstore.RunID, f runstore.Fence) (Compacted, error) {
	var pace pace
	for seen := runstore.Version(0); ; {
		rec, found, err := t.readRecord(ctx, id, compactionKey)
		if err != nil {
			return Compacted{}, err
		}
		if !found { // the run was purged meanwhile
			return Compacted{}, ErrNoSuchRun
		}
		state, err := compactionOf(id, rec)
		if err != nil || state.Done {
			return state.result(), err
		}
		if state.version > seen { // another caller makes progress: do not give up
			pace.n = min(pace.n, optimistic.MaxAttempts/2)
		}
		seen = state.version
		done, err := t.compactOnce(ctx, id, f, state)
		if err == nil {
			return done.result(), nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return Compacted{}, err
		}
		if err := pace.next(ctx, err); err != nil {
			return Compacted{}, err
		}
	}
}

// compactOnce blanks the rows that still have bodies, one batch per commit, and closes the
// compaction.
func (t *Tape) compactOnce(ctx context.Context, id runstore.RunID, f runstore.Fence, state compaction) (compaction, error) {
	var collected blankRows
	batch := func() runstore.Batch { return guards(id, f, runstore.AtVersion(compactionKey, state.version)) }
	for rec, err := range runstore.Records(ctx, t.store, id, "") {
		if err != nil {
			return compaction{}, noSuchRun(err)
		}
		if string(rec.Key) > obligationPrefix {
			break
		}
		row, found, err := blankOf(id, rec, state.UpTo)
		if err != nil {
			return compaction{}, err
		}
		if !found || collected.add(row) {
			continue
		}
		b := batch()
		next := state.blank(&b, collected.rows)
		if state, err = t.stampCompaction(ctx, b, next); err != nil {
			return compaction{}, err
		}
		collected = blankRows{}
		collected.add(row)
	}
	run, summary, err := t.readRun(ctx, id)
	if err != nil {
		return compaction{}, err
	}
	return t.closeCompaction(ctx, batch(), run, summary, state, collected.rows)
}

// awaitCompaction completes the compaction that made a guard fail, if it is not done, and returns
// the final version of its record.
func (t *Tape) awaitCompaction(ctx context.Context, id runstore.RunID) (runstore.Version, error) {
	for {
		rec, found, err := t.readRecord(ctx, id, compactionKey)
		if err != nil || !found {
			return 0, err
		}
		state, err := compactionOf(id, rec)
		if err != nil || state.Done {
			return state.version, err
		}
		if _, err := t.finishCompaction(ctx, id, runstore.Fence{}); err != nil {
			return 0, err
		}
	}
}

// meetsCompaction reports whether a commit failed because the record of the run's compaction is not
// at the version that the guard names.
func meetsCompaction(err error) bool {
	var conflict *runstore.ConflictError
	return errors.As(err, &conflict) && conflict.Key == compactionKey
}

// pace limits and spaces the rounds of a compaction that lose to other writers. Unlike [retries] it
// takes no turn: a round may be long.
type pace struct{ n int }

// next pauses and returns nil, or returns lost, the conflict, if there were too many rounds or ctx
// has ended.
func (p *pace) next(ctx context.Context, lost error) error {
	if p.n++; p.n == optimistic.MaxAttempts {
		return lost
	}
	return optimistic.Rest(ctx, p.n-1, lost)
}

// millis returns a time in milliseconds since 1970; 0 for the zero time.
func millis(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}
