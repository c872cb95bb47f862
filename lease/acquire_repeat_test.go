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

// An acquisition whose reply is lost keeps its unknown outcome, also when a later answer is a refusal: the store
// may have forgotten the first result, or apply the first copy once the lease is free.
func TestAcquireOfUnknownOutcome(t *testing.T) {
	for _, test := range []struct {
		name    string
		applied bool
		then    func(f *fixture, next func() (runstore.Granted, error)) (runstore.Granted, error)
		ends    bool // with the answer, not with the context
		want    error
	}{
		{"the store is away", true, func(*fixture, func() (runstore.Granted, error)) (runstore.Granted, error) {
			return runstore.Granted{}, unavailable()
		}, false, runstore.ErrUnavailable},
		{"the store is closed", true, func(*fixture, func() (runstore.Granted, error)) (runstore.Granted, error) {
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: run, Err: runstore.ErrClosed}
		}, true, runstore.ErrClosed},
		{"another holder has the lease", false, func(f *fixture, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if f.head().Token == 0 {
				f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: runstore.MaxTTL})
			}
			return next()
		}, false, runstore.ErrLeaseHeld},
		{"the run was purged", true, func(f *fixture, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			f.purge()
			return next()
		}, true, runstore.ErrNotFound},
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
				if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, test.want) || errors.Is(err, context.DeadlineExceeded) == test.ends {
					t.Errorf("got %v, want %v, of unknown outcome", err, test.want)
				}
			})
		})
	}
}

// purge purges the run, with the results that the store remembers.
func (f *fixture) purge() {
	f.t.Helper()
	b := runstore.NewBatch(run, runstore.Unguarded("test"))
	b.Purge = true
	if _, err := f.Commit(context.Background(), b); err != nil {
		f.t.Fatal(err)
	}
}

// A copy of an acquisition that is under way is applied after its repeats have met another holder, and their
// caller has left.
func TestAcquireOfWhichALateCopyIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		other := f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 10 * time.Minute})
		f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if n == 1 {
				return runstore.Granted{}, hang(ctx) // the server is frozen, and performs the request later
			}
			return next()
		}
		req := request()
		req.Writes = writes("begin")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := f.keeper(nil).Acquire(ctx, req)
		if !errors.Is(err, runstore.ErrLeaseHeld) || runstore.OutcomeOf(err) != runstore.Unknown {
			t.Errorf("got %v, want ErrLeaseHeld, of unknown outcome", err)
		}
		if _, err := f.RunStore.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: other.Lease.Fence()}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.RunStore.AcquireLease(t.Context(), f.acquires[0]); err != nil {
			t.Fatal(err)
		}
		f.wantKinds("begin")
	})
}
