// Package outcome maps an engine's errors to the outcome of the operation that met them, and paces
// an operation's retries, in the same way for every adapter. An adapter classifies its engine's
// codes; this package defines the resulting errors and what the caller sees of them.
package outcome

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// classified is an error of the engine or the context with its kind.
type classified struct{ kind, cause error }

func (e *classified) Error() string   { return e.kind.Error() + ": " + e.cause.Error() }
func (e *classified) Unwrap() []error { return []error{e.kind, e.cause} }

// WithKind returns cause with one of the contract's kinds, or with a detail that matches a kind.
func WithKind(kind, cause error) error { return &classified{kind, cause} }

// Unavailable returns cause as ErrUnavailable: nothing was applied, or ever will be.
func Unavailable(cause error) error { return WithKind(runstore.ErrUnavailable, cause) }

// Unknown returns cause as ErrUnknownOutcome: a write may have been applied, whatever the result of
// a later request of the same operation.
func Unknown(cause error) error {
	var decided *classified
	if errors.As(cause, &decided) {
		cause = decided.cause
	}
	return WithKind(runstore.ErrUnknownOutcome, cause)
}

// Definite reports whether err means that nothing was applied (I11): it is one of the contract's
// kinds, and not an unknown outcome.
func Definite(err error) bool { return runstore.KindOf(err) != runstore.ErrUnknownOutcome }

// NotApplied returns the error of an operation that applies no write of its caller, such as a read or the
// opening of a store: err itself if it is definite or nil, and ErrUnavailable with err as its cause otherwise.
func NotApplied(ctx context.Context, err error) error {
	if Definite(err) {
		return err
	}
	return Unavailable(Cause(ctx, err))
}

// Wrap returns the error that the caller of an operation gets: the operation's name, the run, and
// the kind and cause of err. The outcome of an unclassified error is unknown. Wrap returns nil for
// nil.
func Wrap(op string, id runstore.RunID, err error) error {
	if err == nil {
		return nil
	}
	e := &runstore.OpError{Op: op, Run: id, Err: err}
	var decided *classified
	if errors.As(err, &decided) {
		e.Err, e.Cause = decided.kind, decided.cause
	}
	return e
}

// Cause adds the context's error to err where a request failed because the context ended.
func Cause(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return errors.Join(ended, err)
	}
	return err
}
