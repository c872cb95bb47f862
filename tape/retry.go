package tape

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The pace at which a write of unknown outcome is repeated.
const (
	maxRepeats  = 5
	firstRepeat = 5 * time.Millisecond
)

// retry repeats a step whose outcome is unknown, until ctx ends or its patience
// does. The step must be recognisable by the store (a batch id, a grant id) or
// change nothing, so that a repeat of one that was applied gets the first result.
// Every other error is definite and goes to the caller at once: whether to send
// again what was surely not applied is for the caller to say. But a repeat that the
// store did not get to judge says nothing of the step before it: then the outcome
// stays unknown.
func retry[R any](ctx context.Context, step func() (R, error)) (R, error) {
	var lost error
	for n := 0; ; n++ {
		result, err := step()
		switch kind := runstore.KindOf(err); {
		case kind == runstore.ErrUnknownOutcome:
			lost = err
		case lost != nil && (kind == runstore.ErrUnavailable || kind == runstore.ErrCorrupt || kind == runstore.ErrClosed):
			return result, &runstore.OpError{Op: "repeat", Err: runstore.ErrUnknownOutcome, Cause: fmt.Errorf("%w; the repeat: %w", lost, err)}
		}
		if err == nil || runstore.OutcomeOf(err) != runstore.Unknown || n == maxRepeats || ctx.Err() != nil {
			return result, err
		}
		pause := firstRepeat << n
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return result, err
		case <-timer.C:
		}
	}
}

// commit commits b under a batch id, so that a lost reply is resolved by
// repeating it.
func (t *Tape) commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	b.ID = runstore.NewBatchID()
	done, err := retry(ctx, func() (runstore.Committed, error) { return t.store.Commit(ctx, b) })
	return done, noSuchRun(err)
}

// noSuchRun puts the store's "not found" into the protocol's words.
func noSuchRun(err error) error {
	if errors.Is(err, runstore.ErrNotFound) {
		return ErrNoSuchRun
	}
	return err
}
