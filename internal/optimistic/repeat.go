package optimistic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The timing of the repeats of a write whose outcome is unknown.
const (
	maxRepeats  = 5
	firstRepeat = 5 * time.Millisecond
)

// Repeat repeats a step while its outcome is unknown, until ctx or the time limit ends. The store
// must recognise a repeat (by a batch id or a grant id), or the step must change nothing, so that
// the repeat of an applied step returns the first result. Every other error is definite and
// returned at once: the caller decides whether to repeat what was surely not applied. But if the
// store did not evaluate a repeat, its error says nothing about the step before: the outcome then
// stays unknown. It also stays unknown, and Repeat does not repeat, if the store no longer remembers
// the step (runstore.ErrForgotten): it could apply a repeat again, or refuse it for the step's change.
// A store finds that out within one call. If the call ends before, because the store was unreachable for
// its retry timeout, and other writers make more writes than it remembers until the repeat, the repeat is
// judged as a new step.
func Repeat[R any](ctx context.Context, step func() (R, error)) (R, error) {
	var lost error
	for n := 0; ; n++ {
		result, err := step()
		switch kind := runstore.KindOf(err); {
		case kind == runstore.ErrUnknownOutcome:
			lost = err
		case lost != nil && (kind == runstore.ErrUnavailable || kind == runstore.ErrCorrupt || kind == runstore.ErrClosed):
			return result, &runstore.OpError{Op: "repeat", Err: runstore.ErrUnknownOutcome, Cause: fmt.Errorf("%w; the repeat: %w", lost, err)}
		}
		if err == nil || runstore.OutcomeOf(err) != runstore.Unknown || errors.Is(err, runstore.ErrForgotten) || n == maxRepeats || ctx.Err() != nil {
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

// Commit commits b under its id, or under a new one if it has none, and repeats it if the reply was
// lost.
func Commit(ctx context.Context, s interface {
	Commit(context.Context, runstore.Batch) (runstore.Committed, error)
}, b runstore.Batch) (runstore.Committed, error) {
	if b.ID == "" {
		b.ID = runstore.NewBatchID()
	}
	return Repeat(ctx, func() (runstore.Committed, error) { return s.Commit(ctx, b) })
}
