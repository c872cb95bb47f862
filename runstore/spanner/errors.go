package spanner

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/outcome"
)

// attemptTimeout bounds one transaction with its repeats by the client, or one read, so
// that a request which was lost is sent again. It is longer than the ten seconds after
// which Spanner may end a transaction that it hears nothing of, whose locks a repeat
// would wait for.
const attemptTimeout = 15 * time.Second

// tries paces the repeats of one operation.
func (s *Store) newBackoff() *outcome.Backoff {
	return outcome.NewBackoff(s.here, s.opts.RetryTimeout, 2*time.Millisecond)
}

// retryable reports whether an error says nothing against sending the same again.
// ALREADY_EXISTS is a tie in the feed (see position.go).
func retryable(err error) bool {
	switch spanner.ErrCode(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.Unimplemented, codes.OutOfRange:
		return false
	default:
		return true
	}
}

// again runs f, which may be repeated, while Spanner cannot be reached.
func (s *Store) retry(ctx context.Context, f func(ctx context.Context) error) error {
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
		if newer := s.schemaError(ctx, err); outcome.Definite(newer) {
			return newer
		}
		if ctx.Err() != nil || !retryable(err) || !t.More(ctx) {
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

// slowly runs f, which may be repeated and may take long: only ctx bounds it.
func (s *Store) retryUnbounded(ctx context.Context, f func(ctx context.Context) error) error {
	for t := s.newBackoff(); ; {
		err := f(ctx)
		if err == nil || outcome.Definite(err) {
			return err
		}
		if ctx.Err() != nil || !retryable(err) || !t.More(ctx) {
			return outcome.Unavailable(outcome.Cause(ctx, err))
		}
	}
}

// commitTracker follows the commits of one operation on the wire, where each of them can
// still be told apart: the client repeats some transactions by itself, also after errors
// that leave it open whether the commit was made (a stream that was reset), and reports
// only the last error.
type commitTracker struct {
	ambiguous atomic.Bool
	// until is when a strict lease that the commit is made under ends, on the clock of
	// this process: it was read before, and counts from when the request left.
	leaseEnd atomic.Pointer[localclock.Reading]
	here     localclock.Clock
}

type commitTrackerKey struct{}

func (f *commitTracker) watch(ctx context.Context) context.Context {
	return context.WithValue(ctx, commitTrackerKey{}, f)
}

// unknown reports whether a commit may have been made, or may yet be.
func (f *commitTracker) unknown() bool { return f.ambiguous.Load() }

// watchCommits is an interceptor.
func watchCommits(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	f, ok := ctx.Value(commitTrackerKey{}).(*commitTracker)
	if !ok || !strings.HasSuffix(method, "/Commit") {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if until := f.leaseEnd.Load(); until != nil {
		bound, cancel := context.WithTimeout(ctx, f.here.Until(*until))
		defer cancel()
		ctx = bound
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil && !refusedCommit(err) {
		f.ambiguous.Store(true)
	}
	return err
}

// rollbackTimeout bounds what the client does after a refusal, without the caller's
// context: without it a server that does not answer would keep a caller for 30 seconds. A
// transaction that was not ended loses its locks when another one wants them, or when it
// was idle for a while.
const rollbackTimeout = time.Second

// boundRollbacks is an interceptor.
func boundRollbacks(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/Rollback") {
		bound, cancel := context.WithTimeout(ctx, rollbackTimeout)
		defer cancel()
		ctx = bound
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// refusedCommit reports whether an error of a commit says that nothing was written. A
// commit that was aborted has changed nothing:
// https://cloud.google.com/spanner/docs/reference/rpc/google.spanner.v1#transactions.
func refusedCommit(err error) bool {
	return spanner.ErrCode(err) == codes.Aborted || spanner.ErrCode(err) == codes.AlreadyExists || !retryable(err)
}
