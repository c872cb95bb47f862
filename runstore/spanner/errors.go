package spanner

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// attemptTimeout (15 s) bounds one transaction with the client library's own repeats, or one read,
// so that a lost request is sent again. It exceeds the 10 s after which Spanner may abort an idle
// transaction; an earlier retry would only wait for that transaction's locks.
const attemptTimeout = 15 * time.Second

// newBackoff returns the pauses between the attempts of one operation, bounded by RetryTimeout.
func (s *engine) newBackoff() *outcome.Backoff {
	return outcome.NewBackoff(s.here, s.opts.RetryTimeout, 2*time.Millisecond)
}

// retryable reports whether the same request may succeed when it is sent again. ALREADY_EXISTS is
// retryable: it is a tie of two commit timestamps in the feed (see position.go).
func retryable(err error) bool {
	switch spanner.ErrCode(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.Unimplemented, codes.OutOfRange:
		return false
	default:
		return true
	}
}

// retry calls f, which must be safe to repeat, until it succeeds, fails for good, or RetryTimeout
// or ctx ends. Each attempt is bounded by attemptTimeout.
func (s *engine) retry(ctx context.Context, f func(ctx context.Context) error) error {
	t := s.newBackoff()
	return s.retryWithin(ctx, t, func() error {
		bound, cancel := t.Attempt(ctx, s.attemptTimeout)
		defer cancel()
		return f(bound)
	})
}

// retryUnbounded is retry for an f that may take long: only ctx bounds an attempt.
func (s *engine) retryUnbounded(ctx context.Context, f func(ctx context.Context) error) error {
	return s.retryWithin(ctx, s.newBackoff(), func() error { return f(ctx) })
}

// retryWithin is the loop of retry and retryUnbounded, with the pauses of t.
func (s *engine) retryWithin(ctx context.Context, t *outcome.Backoff, attempt func() error) error {
	for {
		err := attempt()
		if err == nil || outcome.Definite(err) {
			return err
		}
		if newer := s.schemaError(ctx, t, err); outcome.Definite(newer) {
			return newer
		}
		if ctx.Err() != nil || !retryable(err) || !t.More(ctx) {
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

// commitTracker observes the Commit RPCs of one operation on the wire and remembers whether one of
// them had an ambiguous outcome. The client library reports only the last error of a transaction,
// and reruns some transactions by itself, even after errors that leave the outcome of the commit
// open (a stream that was reset).
type commitTracker struct {
	seen      atomic.Bool // a commit was sent
	ambiguous atomic.Bool // a commit ended with an error that does not rule out that it was applied
	// leaseEnd is when the strict lease that fences the commit ends, on this process's clock. It is
	// counted from when the guard statement left, so it is never later than on the store clock.
	leaseEnd atomic.Pointer[localclock.Reading]
	here     localclock.Clock
	tries    []*try // the attempts that had writes, since the last one whose commit was surely not applied
}

// commitTrackerKey is the context key of the operation's commitTracker.
type commitTrackerKey struct{}

// watch returns a context whose commits f observes.
func (f *commitTracker) watch(ctx context.Context) context.Context {
	return context.WithValue(ctx, commitTrackerKey{}, f)
}

// unknown reports whether a commit may have been applied, or may yet be.
func (f *commitTracker) unknown() bool { return f.ambiguous.Load() }

// watchCommits is a gRPC interceptor. It reports the outcome of each Commit to the commitTracker of
// its context, and ends a commit when the strict lease ends.
func watchCommits(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	f, ok := ctx.Value(commitTrackerKey{}).(*commitTracker)
	if !ok || !strings.HasSuffix(method, "/Commit") {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	f.seen.Store(true)
	if until := f.leaseEnd.Load(); until != nil {
		// If the time of day was merely set ahead, the write is attempted again.
		bound, cancel := context.WithTimeout(ctx, f.here.LeastUntil(*until))
		defer cancel()
		ctx = bound
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil && !refusedCommit(err) {
		f.ambiguous.Store(true)
	}
	return err
}

// rollbackTimeout (1 s) bounds the rollback that the client library sends after a refusal without
// the caller's context; otherwise a server that does not answer would block the caller for 30 s. A
// transaction that was not rolled back loses its locks when another transaction wants them, or when
// it has been idle for a while.
const rollbackTimeout = time.Second

// boundRollbacks is a gRPC interceptor that applies rollbackTimeout.
func boundRollbacks(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/Rollback") {
		bound, cancel := context.WithTimeout(ctx, rollbackTimeout)
		defer cancel()
		ctx = bound
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// refusedCommit reports whether an error of Commit proves that nothing was written. An aborted
// commit has changed nothing:
// https://cloud.google.com/spanner/docs/reference/rpc/google.spanner.v1#transactions.
func refusedCommit(err error) bool {
	return spanner.ErrCode(err) == codes.Aborted || spanner.ErrCode(err) == codes.AlreadyExists || !retryable(err)
}
