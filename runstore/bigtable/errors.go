package bigtable

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

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

// newBackoff paces the repeats of one operation.
func (s *engine) newBackoff() *outcome.Backoff {
	return outcome.NewBackoff(s.clock.local, s.opts.RetryTimeout, 2*time.Millisecond)
}

// retry runs f, which may be repeated, while Bigtable cannot be reached.
func (s *engine) retry(ctx context.Context, f func(ctx context.Context) error) error {
	for t := s.newBackoff(); ; {
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		err := f(bound)
		cancel()
		if err == nil {
			return nil
		}
		if outcome.Definite(err) {
			return err
		}
		if ctx.Err() != nil || refusedByServer(err) || !t.More(ctx) {
			return outcome.Unavailable(s.explain(outcome.Cause(ctx, err)))
		}
	}
}

// explain adds what the operator can do about an error.
func (s *engine) explain(err error) error {
	if status.Code(err) == codes.FailedPrecondition {
		return errors.Join(err, errors.New("conditional mutations need an app profile with single-cluster routing that allows single-row transactions"))
	}
	return err
}
