package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// A store may repeat a request whose reply it has lost. If the grant has been ended in between, even the
// first answer is about a grant that has ended. Acquire continues under a fresh id, unless that would
// repeat writes, end a later grant, replace the caller's id or pass over a fence.
func TestAcquireGoesOnWhenTheStoreRepeatedItsRequest(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(f *fixture, req *runstore.AcquireRequest)
		ended  bool // the answer has Ended instead of an error
		want   error
	}{
		{"fenced", func(*fixture, *runstore.AcquireRequest) {}, false, nil},
		{"ended", func(*fixture, *runstore.AcquireRequest) {}, true, nil},
		{"with the caller's grant id", func(_ *fixture, req *runstore.AcquireRequest) { req.Grant = "mine" }, false, runstore.ErrFenced},
		{"with writes", func(_ *fixture, req *runstore.AcquireRequest) { req.Writes.Append("granted", nil) }, true, lease.ErrLost},
		{"with a preemption", func(_ *fixture, req *runstore.AcquireRequest) { req.Preempt = "take over" }, false, runstore.ErrFenced},
		{"with a fence", func(f *fixture, req *runstore.AcquireRequest) {
			req.Guards = []runstore.Guard{f.grant(agent).Lease.Fence()}
		}, false, runstore.ErrFenced},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					if n > 1 {
						return next()
					}
					first, err := next() // the reply is lost inside the store
					if err != nil {
						t.Error(err)
					}
					f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
					if test.ended {
						first.Ended = true
						return first, nil
					}
					return next()
				}
				req := request()
				test.change(f, &req)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				granted, err := f.keeper(nil).Acquire(ctx, req)
				switch {
				case test.want != nil && (!errors.Is(err, test.want) || ctx.Err() != nil):
					t.Errorf("got %+v, error %v; want %v", granted, err, test.want)
				case test.want == nil && (err != nil || granted.Lease.Token != 3):
					t.Errorf("got %+v, error %v; want token 3 after that of agent-b", granted, err)
				case test.want == nil && granted.Sent != time.Now():
					t.Errorf("trust counts from %v, want from the request that won, %v", granted.Sent, time.Now())
				}
			})
		})
	}
}

// A store that refuses every id is asked with growing pauses.
func TestAcquireRenamesItsGrantWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire = func(context.Context, int, func() (runstore.Granted, error)) (runstore.Granted, error) {
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: run, Err: &runstore.FencedError{}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := f.keeper(nil).Acquire(ctx, request())
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want the deadline and the last answer", err)
		}
		if n := len(f.sentAt); n < 5 || n > 60 {
			t.Errorf("%d requests in a minute, want a few", n)
		}
	})
}

// An acquisition whose reply is lost keeps its unknown outcome while the store is away. The answer that
// another holder has the lease is definite.
func TestAcquireOfUnknownOutcome(t *testing.T) {
	for _, test := range []struct {
		name    string
		applied bool
		then    func(f *fixture, next func() (runstore.Granted, error)) (runstore.Granted, error)
		ends    bool // with the answer, not with the context
		want    error
		outcome runstore.Outcome
	}{
		{"the store is away", true, func(*fixture, func() (runstore.Granted, error)) (runstore.Granted, error) {
			return runstore.Granted{}, unavailable()
		}, false, runstore.ErrUnavailable, runstore.Unknown},
		{"the store is closed", true, func(*fixture, func() (runstore.Granted, error)) (runstore.Granted, error) {
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: run, Err: runstore.ErrClosed}
		}, true, runstore.ErrClosed, runstore.Unknown},
		{"another holder has the lease", false, func(f *fixture, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if f.head().Token == 0 {
				f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: runstore.MaxTTL})
			}
			return next()
		}, false, runstore.ErrLeaseHeld, runstore.NotApplied},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					if n > 1 {
						return test.then(f, next)
					}
					if test.applied {
						_, _ = next()
					}
					return runstore.Granted{}, replyLost
				}
				req := request()
				req.Writes = writes("begin")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := f.keeper(nil).Acquire(ctx, req)
				if runstore.OutcomeOf(err) != test.outcome || !errors.Is(err, test.want) || errors.Is(err, context.DeadlineExceeded) == test.ends {
					t.Errorf("got %v, want %v, of outcome %v", err, test.want, test.outcome)
				}
			})
		})
	}
}
