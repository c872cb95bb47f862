// Package outcome says for every adapter alike what an engine's error means for the
// operation that met it, and how long an operation is repeated. An adapter classifies
// its engine's codes; the words for the result, and what the caller gets to see, are
// here.
package outcome

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// known is an error of the engine or the context whose meaning is decided.
type classified struct{ kind, cause error }

func (e *classified) Error() string   { return e.kind.Error() + ": " + e.cause.Error() }
func (e *classified) Unwrap() []error { return []error{e.kind, e.cause} }

// WithKind gives cause one of the contract's kinds, or a detail that matches one.
func WithKind(kind, cause error) error { return &classified{kind, cause} }

// Unavailable says that nothing was applied, or ever will be.
func Unavailable(cause error) error { return WithKind(runstore.ErrUnavailable, cause) }

// Unknown says that a write may have been applied, whatever a later request of the
// same operation met.
func Unknown(cause error) error {
	var decided *classified
	if errors.As(cause, &decided) {
		cause = decided.cause
	}
	return WithKind(runstore.ErrUnknownOutcome, cause)
}

// Definite reports whether err says that nothing was applied (I11): it is one of the
// contract's kinds, and not an unknown outcome.
func Definite(err error) bool { return runstore.KindOf(err) != runstore.ErrUnknownOutcome }

// Wrap is what a caller of an operation gets: its name, the run, the kind and the cause
// of err. The outcome of an error that nothing has classified is unknown. Nil stays nil.
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

// Cause prefers the context's error where a request failed because of it.
func Cause(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return errors.Join(ended, err)
	}
	return err
}
