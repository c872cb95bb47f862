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

// retryWrite is retryBounded for a call whose effect counts even if its reply is lost. After an error,
// unknown reports whether one attempt has an unknown outcome: the refusal of a later one does not resolve
// it, because the store may have forgotten the first result, or apply the first copy later.
func retryWrite(ctx context.Context, bound time.Duration, run runstore.RunID, op string, call func(context.Context) error) (unknown bool, err error) {
	var doubt atomic.Bool // a call that was abandoned may still return
	err = retryBounded(ctx, bound, run, op, func(ctx context.Context) error {
		err := call(ctx)
		if runstore.OutcomeOf(err) == runstore.Unknown {
			doubt.Store(true)
		}
		return err
	})
	return doubt.Load() || runstore.OutcomeOf(err) == runstore.Unknown, err
}

// unresolved returns err, the answer to a repeat of a request of unknown outcome, as an error that
// matches runstore.ErrUnknownOutcome too. No error resolves the outcome: the store may have forgotten the
// first result (runstore.RememberedBatches, a purge), or apply the first copy later.
func unresolved(op string, run runstore.RunID, err error) error {
	if runstore.OutcomeOf(err) == runstore.Unknown {
		return err
	}
	return &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnknownOutcome, Cause: err}
}

// notEvaluated reports whether err is that of a request that the store did not evaluate: a server that
// does not accept the client's credentials (runstore.ErrInvalid), for example, has not looked.
func notEvaluated(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrUnavailable, runstore.ErrClosed, runstore.ErrCorrupt, runstore.ErrInvalid, runstore.ErrUnsupported:
		return true
	default:
		return false
	}
}

// reached reports whether err, the answer to a repeat of a request of unknown outcome, is that of a store
// which did not evaluate the repeat.
func reached(err error) bool {
	return errors.Is(err, runstore.ErrCorrupt) || errors.Is(err, runstore.ErrInvalid) || errors.Is(err, runstore.ErrUnsupported)
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
