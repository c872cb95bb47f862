package tape

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// commit commits b under a batch id, and repeats it if the reply was lost. A conflict after that is an unknown
// outcome, so that no caller takes it for a reason to write again.
func (t *Tape) commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if b.ID == "" {
		b.ID = runstore.NewBatchID()
	}
	done, lost, err := repeat(ctx, func() (runstore.Committed, error) { return t.store.Commit(ctx, b) })
	if lost != nil && errors.Is(err, runstore.ErrConflict) {
		return runstore.Committed{}, unknown("commit", b.Run(), lost)
	}
	return done, noSuchRun(err)
}

// repeat is optimistic.Repeat. It also returns the unknown outcome of the last call that had one: the run may no
// longer remember a write whose reply was lost, and refuse its repeat for the write's own change.
func repeat[R any](ctx context.Context, step func() (R, error)) (done R, lost, err error) {
	done, err = optimistic.Repeat(ctx, func() (R, error) {
		done, err := step()
		if runstore.OutcomeOf(err) == runstore.Unknown {
			lost = err
		}
		return done, err
	})
	return done, lost, err
}

// unknown returns err as an unknown outcome that matches no other kind: err may have a kind of its own, such as
// runstore.ErrFenced, which says nothing about the write.
func unknown(op string, run runstore.RunID, err error) error {
	return &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnknownOutcome, Cause: errors.New(err.Error())}
}

// noSuchRun replaces the store's ErrNotFound with ErrNoSuchRun.
func noSuchRun(err error) error {
	if errors.Is(err, runstore.ErrNotFound) {
		return ErrNoSuchRun
	}
	return err
}
