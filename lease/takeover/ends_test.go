package takeover_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Work that returns the error of its context at the end of the worker has not failed, even if the
// context has another cause (signal.NotifyContext sets one).
func TestEndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		w := worker(t, store, "worker", takeover.Options{})
		ctx, stop := context.WithCancelCause(t.Context())
		cause := errors.New("terminated")
		time.AfterFunc(time.Minute, func() { stop(cause) })
		if err := w.Run(ctx, func(ctx context.Context, _ *lease.Held, _ runstore.Run) error {
			<-ctx.Done()
			return ctx.Err()
		}); err != cause {
			t.Errorf("run: %v, want the context's cause", err)
		}
		if s := w.Status(); s.Takeovers != 1 || s.Failed != 0 {
			t.Errorf("status %+v, want one takeover and no failure", s)
		}
	})
}

// The loss of another lease, which the work held, is a failure of the work.
func TestLossOfAnotherLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		w := worker(t, store, "worker", takeover.Options{})
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		_ = w.Run(ctx, func(context.Context, *lease.Held, runstore.Run) error {
			return &lease.LostError{Run: "other", Token: 1, Reason: lease.ErrExpired}
		})
		if s := w.Status(); s.Takeovers == 0 || s.Lost != 0 || s.Failed != s.Takeovers {
			t.Errorf("status %+v, want failures and no losses", s)
		}
	})
}

// waiting is a store whose acquires wait for a second.
type waiting struct{ runstore.RunStore }

func (w waiting) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	time.Sleep(time.Second)
	return w.RunStore.AcquireLease(ctx, r)
}

// A request for a lease is no work in flight.
func TestClaimIsNoWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		w := worker(t, waiting{store}, "worker", takeover.Options{MinBackoff: time.Second})
		stop := run(t, finish(time.Minute, func(runstore.RunID) {}), w)
		defer stop()
		for range 300 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if s := w.Status(); s.InFlight != int(s.Takeovers) {
				t.Fatalf("status %+v, want as much work as takeovers", s)
			}
		}
		if s := w.Status(); s.InFlight != 1 {
			t.Errorf("status %+v, want one piece of work", s)
		}
	})
}

// Long pauses do not overflow, however often the work fails.
func TestLongPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		w := worker(t, store, "worker", takeover.Options{MinBackoff: 6 * time.Hour, MaxBackoff: 7 * time.Hour})
		stop := run(t, func(context.Context, *lease.Held, runstore.Run) error { return errors.New("fails") }, w)
		defer stop()
		time.Sleep(30 * 24 * time.Hour)
		if s := w.Status(); s.Failed < 30 {
			t.Errorf("status %+v, want a failure at least once a day", s)
		}
	})
}

// A run that a worker hands off is neither lost nor failed, and the worker leaves it to the successor.
func TestHandedOffRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		w := worker(t, store, "worker", takeover.Options{Lease: &lease.Options{Handoff: lease.Gap}})
		stop := run(t, finish(time.Hour, func(runstore.RunID) {}), w)
		time.Sleep(time.Minute)
		keeper, err := lease.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		granted, err := keeper.RequestHandoff(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "person"}})
		if err != nil || granted.Lease.Token != 2 {
			t.Fatalf("got %+v, %v; want token 2", granted.Lease, err)
		}
		time.Sleep(time.Minute / 4)
		if s := w.Status(); s.InFlight != 0 || s.Lost != 0 || s.Failed != 0 || s.Attempts != 1 {
			t.Errorf("the worker's status is %+v, want one attempt, and no loss", s)
		}
		stop()
	})
}
