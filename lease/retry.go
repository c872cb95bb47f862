package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// transient reports whether the request may be repeated: either the request did not reach the store
// or the answer was lost. Every other error is the store's answer, and so is a grant that has ended
// (ErrLost).
func transient(err error) bool {
	kind := runstore.KindOf(err)
	return (kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome) && !errors.Is(err, ErrLost)
}

// retryBounded repeats call, with backoff, until its answer is definite, ctx ends or the bound is
// reached, or until the store no longer remembers the request (runstore.ErrForgotten), whose writes a
// repeat could apply again. Each attempt gets at most half of the time left, so that one hanging request leaves time
// for another. A call that ignores its context is abandoned at the bound.
func retryBounded(ctx context.Context, bound time.Duration, run runstore.RunID, op string, call func(context.Context) error) error {
	deadline := time.Now().Add(bound)
	for wait := bound / 20; ; wait *= 2 {
		err := attempt(ctx, time.Until(deadline), run, op, call)
		rest := pace.Jitter(wait)
		if err == nil || !transient(err) || errors.Is(err, runstore.ErrForgotten) || time.Until(deadline)-rest < bound/10 || !pace.Pause(ctx, rest) {
			return err
		}
	}
}

// retryWrite is retryBounded for a call whose effect counts even if its reply is lost: if one attempt has
// an unknown outcome and the store did not evaluate the last one, the outcome stays unknown.
func retryWrite(ctx context.Context, bound time.Duration, run runstore.RunID, op string, call func(context.Context) error) error {
	var unknown atomic.Bool // a call that was abandoned may still return
	err := retryBounded(ctx, bound, run, op, func(ctx context.Context) error {
		err := call(ctx)
		if runstore.OutcomeOf(err) == runstore.Unknown {
			unknown.Store(true)
		}
		return err
	})
	if unknown.Load() {
		err = unresolved(op, run, err)
	}
	return err
}

// unresolved returns err, the answer to the repeat of a request of unknown outcome. It matches
// runstore.ErrUnknownOutcome if the store did not evaluate the repeat: a server that does not accept the
// client's credentials, for example, has not looked.
func unresolved(op string, run runstore.RunID, err error) error {
	switch runstore.KindOf(err) {
	case runstore.ErrUnavailable, runstore.ErrClosed, runstore.ErrCorrupt, runstore.ErrInvalid, runstore.ErrUnsupported:
		return &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnknownOutcome, Cause: err}
	default:
		return err
	}
}

// attempt runs call once with half of the time left as its timeout. It abandons a call that ignores
// its context after all the time left, with an unknown outcome.
func attempt(ctx context.Context, left time.Duration, run runstore.RunID, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, left/2)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	abandon := time.NewTimer(left)
	defer abandon.Stop()
	select {
	case err := <-done:
		return err
	case <-abandon.C:
		return &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnknownOutcome, Cause: context.DeadlineExceeded}
	}
}
