package bigtable

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
)

// opError names the operation and the run in an error of the contract.
func opError(op string, id runstore.RunID, err error) error {
	if err == nil {
		return nil
	}
	e := &runstore.OpError{Op: op, Run: id, Err: err}
	var f *fault
	if errors.As(err, &f) {
		e.Err, e.Cause = f.kind, f.cause
	}
	return e
}

// fault is an error of the engine or the context whose outcome is known.
type fault struct{ kind, cause error }

func (f *fault) Error() string   { return f.kind.Error() + ": " + f.cause.Error() }
func (f *fault) Unwrap() []error { return []error{f.kind, f.cause} }

func unavailable(cause error) error { return &fault{runstore.ErrUnavailable, cause} }

// unknown says that a write may have been made, whatever a later request met.
func unknown(cause error) error {
	var f *fault
	if errors.As(cause, &f) {
		cause = f.cause
	}
	return &fault{runstore.ErrUnknownOutcome, cause}
}

// isKind reports whether err is one of the contract's own.
func isKind(err error) bool { return runstore.KindOf(err) != runstore.ErrUnknownOutcome }

// refusedByServer reports whether an error says that the server did not do what it
// was asked, and would not if it were asked again.
func refusedByServer(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.Unimplemented, codes.OutOfRange, codes.AlreadyExists:
		return true
	default:
		return false
	}
}

// attemptTimeout bounds one request, so that one which was lost is repeated.
const attemptTimeout = 10 * time.Second

// maxPause bounds the pause between two tries.
const maxPause = 200 * time.Millisecond

// tries paces the repeats of one operation.
type tries struct {
	until time.Time
	pause time.Duration
}

func (s *Store) tries() *tries {
	return &tries{until: time.Now().Add(s.opts.Patience), pause: 2 * time.Millisecond}
}

// attempt returns the context of one request.
func (t *tries) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(attemptTimeout, max(time.Until(t.until), time.Millisecond)))
}

// more waits before another try, and reports whether there is to be one.
func (t *tries) more(ctx context.Context) bool {
	pause := t.pause/2 + rand.N(t.pause)
	t.pause = min(2*t.pause, maxPause)
	if time.Now().Add(pause).After(t.until) {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// again runs f, which may be repeated, while Bigtable cannot be reached.
func (s *Store) again(ctx context.Context, f func(ctx context.Context) error) error {
	for t := s.tries(); ; {
		bound, cancel := t.attempt(ctx)
		err := f(bound)
		cancel()
		if err == nil {
			return nil
		}
		if isKind(err) {
			return err
		}
		if ctx.Err() != nil || refusedByServer(err) || !t.more(ctx) {
			return unavailable(s.plainly(cause(ctx, err)))
		}
	}
}

// cause prefers the context's error where a request failed because of it.
func cause(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return errors.Join(ended, err)
	}
	return err
}

// plainly adds what the operator can do about an error.
func (s *Store) plainly(err error) error {
	if status.Code(err) == codes.FailedPrecondition {
		return errors.Join(err, errors.New("conditional mutations need an app profile with single-cluster routing that allows single-row transactions"))
	}
	return err
}
