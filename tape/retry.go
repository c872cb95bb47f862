package tape

import (
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// commit commits b under a batch id, and repeats it if the reply was lost.
func (t *Tape) commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := optimistic.Commit(ctx, t.store, b)
	return done, noSuchRun(err)
}

// unknown returns err as an unknown outcome that matches no other kind: the kind of err, such as
// runstore.ErrFenced, says nothing about the write.
func unknown(op string, run runstore.RunID, err error) error {
	return &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnknownOutcome, Cause: errors.New(err.Error())}
}

// isUnknown reports whether the outcome of a failed write is unknown. The kinds of this package, such as
// ErrNoSuchRun, are refusals.
func isUnknown(err error) bool {
	if errors.Is(err, runstore.ErrUnknownOutcome) {
		return true
	}
	refused := slices.ContainsFunc(Kinds(), func(kind error) bool { return errors.Is(err, kind) })
	return runstore.OutcomeOf(err) == runstore.Unknown && !refused
}

// notSent returns the error of a call that precedes a write. If its outcome is unknown, the error is
// ErrUnavailable, because the write was surely not applied.
func notSent(err error) error {
	if isUnknown(err) {
		return refuse(runstore.ErrUnavailable, "nothing was written: %v", err)
	}
	return err
}

// noSuchRun replaces the store's ErrNotFound with ErrNoSuchRun.
func noSuchRun(err error) error {
	if errors.Is(err, runstore.ErrNotFound) {
		return ErrNoSuchRun
	}
	return err
}
