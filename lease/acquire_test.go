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

func TestAcquireTakesOverSoonAfterTheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		dead := f.grant(runstore.LeaseSpec{Owner: "agent-dead", TTL: 20 * time.Second})
		granted, err := f.keeper(nil).Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		if granted.Lease.Token != dead.Lease.Token+1 || granted.Lease.Owner != "agent-a" {
			t.Errorf("got %+v, want token %v of agent-a", granted.Lease, dead.Lease.Token+1)
		}
		took := time.Since(f.began)
		if took < 20*time.Second || took > 20*time.Second+lease.DefaultMinBackoff/2 {
			t.Errorf("taken over after %v, want within %v of the expiry at 20s", took, lease.DefaultMinBackoff/2)
		}
		if granted.Sent != time.Now() {
			t.Errorf("trust counts from %v, want from the request that won", granted.Sent)
		}
		if n := len(f.acquires); n < 3 || n > 12 {
			t.Errorf("%d requests in 20s, want a few", n)
		}
	})
}

func TestAcquireBacksOffWhileTheHolderLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 10 * time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		_, err := f.keeper(nil).Acquire(ctx, request())
		var held *runstore.LeaseHeldError
		if !errors.As(err, &held) || held.Holder.Owner != "agent-b" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want held by agent-b, and the deadline", err)
		}
		for i := 1; i < len(f.sentAt); i++ {
			full := min(lease.DefaultMinBackoff<<(i-1), lease.DefaultMaxBackoff)
			if i > 4 {
				full = lease.DefaultMaxBackoff
			}
			if gap := f.sentAt[i] - f.sentAt[i-1]; gap < full/2 || gap > full {
				t.Errorf("pause %d was %v, want between %v and %v", i, gap, full/2, full)
			}
		}
		if n := len(f.sentAt); n < 30 {
			t.Errorf("%d requests in 5m, want at least 30", n)
		}
	})
}

// A process that restarts and repeats its request gets a lease that is as old as the first copy.
func TestRepeatByANewProcessIsNotTrustedFromItsRequest(t *testing.T) {
	for name, acquire := range map[string]func(*lease.Keeper, context.Context, runstore.AcquireRequest) (lease.Granted, error){
		"acquire": (*lease.Keeper).Acquire, "try acquire": (*lease.Keeper).TryAcquire,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				req := request()
				req.Grant = runstore.NewGrantID()
				before, err := acquire(f.keeper(nil), t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if before.Sent != time.Now() {
					t.Errorf("the trust of the first copy counts from %v, want its request", before.Sent)
				}
				time.Sleep(20 * time.Second)
				granted, err := acquire(f.keeper(nil), t.Context(), req)
				if err != nil || granted.Lease.Fence() != before.Lease.Fence() {
					t.Fatalf("got %v, %v; want the grant of the first copy", granted.Lease, err)
				}
				f.renew = func(ctx context.Context, _ int, _ func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					return runstore.Renewed{}, hang(ctx)
				}
				err = f.keeper(nil).Hold(t.Context(), granted, func(context.Context, *lease.Held) error {
					t.Error("the work runs under a lease of unknown age that was not renewed")
					return nil
				})
				if !errors.Is(err, lease.ErrExpired) {
					t.Errorf("got %v, want ErrExpired", err)
				}
			})
		})
	}
}

func TestAcquireRepeatsAnUnknownOutcomeWithItsGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			switch n {
			case 1:
				return runstore.Granted{}, unavailable()
			case 2: // applied, reply lost
				_, _ = next()
				return runstore.Granted{}, hang(ctx)
			default:
				return next()
			}
		}
		granted, err := f.keeper(nil).Acquire(t.Context(), request())
		if err != nil || granted.Lease.Token != 1 {
			t.Fatalf("got %+v, %v; want the grant that was made, token 1", granted, err)
		}
		if got := granted.Sent.Sub(f.began); got != f.sentAt[1] {
			t.Errorf("trust counts from %v, want from the request that may have been applied, %v", got, f.sentAt[1])
		}
	})
}

// A request whose reply was lost was granted, and another took the lease before the
// repeat: the repeat is refused for ever, and Acquire goes on as a new contender, but not
// with an id or writes of the caller's.
func TestAcquireGoesOnWhenItsGrantWasLost(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(req *runstore.AcquireRequest)
		ended  error
	}{
		{"plain", func(*runstore.AcquireRequest) {}, nil},
		{"with the caller's grant id", func(req *runstore.AcquireRequest) { req.Grant = "mine" }, runstore.ErrFenced},
		{"with writes", func(req *runstore.AcquireRequest) { req.Writes.Append("granted", nil) }, lease.ErrLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					if n > 1 {
						return next()
					}
					_, _ = next() // applied, reply lost
					f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
					return runstore.Granted{}, hang(ctx)
				}
				req := request()
				test.change(&req)
				granted, err := f.keeper(nil).Acquire(t.Context(), req)
				switch {
				case test.ended != nil && !errors.Is(err, test.ended):
					t.Errorf("got %+v, error %v; want %v", granted, err, test.ended)
				case test.ended == nil && (err != nil || granted.Lease.Token != 3):
					t.Errorf("got %+v, error %v; want token 3 after that of agent-b", granted, err)
				case test.ended == nil && granted.Sent != time.Now():
					t.Errorf("trust counts from %v, want from the request that won, %v", granted.Sent, time.Now())
				}
			})
		})
	}
}

func TestAcquireReturnsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		k := f.keeper(nil)
		req := request()
		req.Run = "absent"
		if _, err := k.Acquire(t.Context(), req); !errors.Is(err, runstore.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
		req = request()
		req.Guards = []runstore.Guard{runstore.AtSeq(9)}
		if _, err := k.Acquire(t.Context(), req); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
		req = request()
		req.TTL = time.Second
		if _, err := k.Acquire(t.Context(), req); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("another TTL than the keeper's: got %v, want ErrInvalid", err)
		}
		if took := time.Since(f.began); took != 0 {
			t.Errorf("refusals took %v, want no waiting", took)
		}
	})
}

func TestTryAcquireDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		k := f.keeper(nil)
		first, err := k.TryAcquire(t.Context(), request())
		if err != nil || first.Lease.TTL != lease.DefaultTTL || first.Lease.Grant == "" {
			t.Fatalf("got %+v, %v", first, err)
		}
		if _, err := k.TryAcquire(t.Context(), request()); !errors.Is(err, runstore.ErrLeaseHeld) {
			t.Errorf("got %v, want ErrLeaseHeld", err)
		}
		if took := time.Since(f.began); took != 0 {
			t.Errorf("took %v, want no waiting", took)
		}
	})
}

func TestAcquireAsksASilentStoreAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if n < 3 {
				return runstore.Granted{}, hang(ctx)
			}
			return next()
		}
		granted, err := f.keeper(nil).Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		if granted.Sent != f.began {
			t.Errorf("trust counts from %v, want from the first request", granted.Sent.Sub(f.began))
		}
		// The trust of the first request may be over; then holding begins with a
		// renewal, and the work is trusted either way.
		err = f.keeper(nil).Hold(t.Context(), granted, func(_ context.Context, held *lease.Held) error {
			if _, ok := held.Trusted(); !ok {
				t.Error("the work began untrusted")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
