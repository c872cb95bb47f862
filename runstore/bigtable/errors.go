package bigtable

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// refusedByServer reports whether the server has not applied the request, and would not apply a repeat.
func refusedByServer(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.Unimplemented, codes.OutOfRange, codes.AlreadyExists:
		return true
	default:
		return false
	}
}

// attemptTimeout is after how long a request without a reply is repeated.
const attemptTimeout = 10 * time.Second

// newBackoff returns the backoff of one operation that may take as long as timeout.
func (s *engine) newBackoff(timeout time.Duration) *outcome.Backoff {
	return outcome.NewBackoff(s.clock.local, timeout, 2*time.Millisecond)
}

// retry calls f, which is idempotent, until it succeeds, fails for good, or the retry timeout ends.
func (s *engine) retry(ctx context.Context, f func(ctx context.Context) error) error {
	for t := s.newBackoff(s.opts.RetryTimeout); ; {
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

// explain adds to an error what the operator can do about it.
func (s *engine) explain(err error) error {
	if status.Code(err) == codes.FailedPrecondition {
		return errors.Join(err, errors.New("conditional mutations need an app profile with single-cluster routing that allows single-row transactions"))
	}
	return err
}
