package lease_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// wantIntervals checks the times between the grant, at 0, and the renewals: the first from half of
// the heartbeat to all of it, the others from 0.8 of it.
func wantIntervals(t *testing.T, renewed []time.Duration, heartbeats ...time.Duration) {
	t.Helper()
	last := time.Duration(0)
	for i, at := range renewed {
		every := heartbeats[min(i, len(heartbeats)-1)]
		least := every / 5 * 4
		if i == 0 {
			least = every / 2
		}
		if d := at - last; d < least || d > every {
			t.Errorf("renewal %d comes %v after the one before it, want %v to %v", i+1, d, least, every)
		}
		last = at
	}
}

func TestHeartbeatsEveryThirdOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		err := f.keeper(nil).Do(t.Context(), request(), wait(95*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		wantIntervals(t, f.renewed(), 10*time.Second)
		if n := len(f.renewed()); n < 9 {
			t.Errorf("%d renewals in 95 s, want at least 9", n)
		}
		f.wantFree()
		if len(f.releases) != 1 {
			t.Errorf("%d releases, want 1", len(f.releases))
		}
	})
}

func TestOwnHeartbeatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		opts := &lease.Options{TTL: time.Minute, Heartbeat: 25 * time.Second}
		if err := f.keeper(opts).Do(t.Context(), request(), wait(55*time.Second)); err != nil {
			t.Fatal(err)
		}
		wantIntervals(t, f.renewed(), 25*time.Second)
		if n := len(f.renewed()); n < 2 {
			t.Errorf("%d renewals in 55 s, want at least 2", n)
		}
	})
}

func TestShorterForeignLeaseIsRenewedSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		granted := f.grant(runstore.LeaseSpec{Owner: "agent-a", TTL: 6 * time.Second})
		if err := f.keeper(nil).Hold(t.Context(), granted, wait(15*time.Second)); err != nil {
			t.Fatal(err)
		}
		wantIntervals(t, f.renewed(), 2*time.Second, 10*time.Second)
		if n := len(f.renewed()); n != 2 {
			t.Errorf("%d renewals in 15 s, want 2", n)
		}
	})
}

func TestWorkWritesUnderTheFenceAndReleasesWithItsLastWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			b := runstore.NewBatch(run, held.Fence())
			b.Append("step", []byte("1"))
			if _, err := f.Commit(ctx, b); err != nil {
				return err
			}
			var last runstore.Writes
			last.Append("finished", nil)
			done := runstore.Status(7)
			last.Status = &done
			held.ReleaseWith(last)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f.wantFree()
		events, err := f.ReadJournal(t.Context(), run, 1, 10)
		if err != nil || len(events) != 2 || events[1].Kind != "finished" || events[1].Token != 1 {
			t.Errorf("journal is %v, %v; want step and finished, under token 1", events, err)
		}
		if got := f.head().Status; got != 7 {
			t.Errorf("status is %d, want 7", got)
		}
	})
}

func TestTheErrorOfTheWorkIsReturnedAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		broken := errors.New("broken")
		err := f.keeper(nil).Do(t.Context(), request(), func(context.Context, *lease.Held) error { return broken })
		if err != broken {
			t.Errorf("got %v, want the work's own error", err)
		}
		f.wantFree()
	})
}

func TestFinalWritesAreAppliedThoughTheWorkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		broken := errors.New("broken")
		err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
			var last runstore.Writes
			last.Append("failed", nil)
			held.ReleaseWith(last)
			return broken
		})
		if err != broken || f.head().LastSeq != 1 {
			t.Errorf("got %v and %d events, want the work's error and 1 event", err, f.head().LastSeq)
		}
	})
}

func TestReleaseHappensAfterTheParentIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stop := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := f.keeper(nil).Do(ctx, request(), func(ctx context.Context, held *lease.Held) error {
			time.AfterFunc(5*time.Second, func() { cancel(stop) })
			<-ctx.Done()
			// Winding down takes longer than the TTL: the lease is kept meanwhile.
			elapse(time.Minute)
			if _, ok := held.Trusted(); !ok {
				t.Error("not trusted while winding down, want the lease kept until the work returns")
			}
			var last runstore.Writes
			last.Append("interrupted", nil)
			held.ReleaseWith(last)
			return context.Cause(ctx)
		})
		if err != stop {
			t.Errorf("got %v, want %v", err, stop)
		}
		f.wantFree()
		if f.head().LastSeq != 1 {
			t.Error("the final writes are missing")
		}
	})
}

func TestCancelledBeforeTheWorkBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := f.keeper(nil).Hold(ctx, f.grant(agent), func(context.Context, *lease.Held) error {
			t.Error("the work ran, want it not begun")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		f.wantFree()
	})
}

func TestReleaseIsBoundedWhenTheStoreHangs(t *testing.T) {
	for name, obedient := range map[string]bool{"honouring its context": true, "ignoring its context": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				freed := make(chan struct{})
				f.release = func(ctx context.Context, _ int, _ func() (runstore.Committed, error)) (runstore.Committed, error) {
					if obedient {
						return runstore.Committed{}, hang(ctx)
					}
					<-freed
					return runstore.Committed{}, unavailable()
				}
				began := time.Now()
				err := f.keeper(nil).Do(t.Context(), request(), func(context.Context, *lease.Held) error { return nil })
				took := time.Since(began)
				var failed *lease.ReleaseError
				if !errors.As(err, &failed) || runstore.OutcomeOf(err) != runstore.Unknown {
					t.Errorf("got %v, want a ReleaseError with an unknown outcome", err)
				}
				if took > lease.DefaultReleaseTimeout {
					t.Errorf("took %v, want at most %v", took, lease.DefaultReleaseTimeout)
				}
				close(freed)
			})
		})
	}
}

func TestReleaseIsRepeatedUntilItsOutcomeIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.release = func(ctx context.Context, n int, next func() (runstore.Committed, error)) (runstore.Committed, error) {
			switch n {
			case 1:
				return runstore.Committed{}, unavailable()
			case 2: // applied, reply lost
				_, _ = next()
				return runstore.Committed{}, hang(ctx)
			default:
				return next()
			}
		}
		err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
			var last runstore.Writes
			last.Append("finished", nil)
			held.ReleaseWith(last)
			return nil
		})
		if err != nil || f.head().LastSeq != 1 || len(f.releases) != 3 {
			t.Errorf("got %v, %d events after %d releases; want one event after 3", err, f.head().LastSeq, len(f.releases))
		}
		f.wantFree()
	})
}

func TestPanicInTheWorkRevokesAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		recovered := func() (v any) {
			defer func() { v = recover() }()
			_ = f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
				var last runstore.Writes
				last.Append("half-made", nil)
				held.ReleaseWith(last)
				panic("boom")
			})
			return nil
		}()
		if recovered != "boom" {
			t.Errorf("recovered %v, want the work's own panic", recovered)
		}
		f.wantFree()
		if f.head().LastSeq != 0 {
			t.Error("the final writes of a panicking work were applied")
		}
	})
}

func TestTheContextEndsWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var left context.Context
		var kept *lease.Held
		if err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			left, kept = ctx, held
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(left); cause != lease.ErrEnded {
			t.Errorf("cause is %v, want ErrEnded", cause)
		}
		if _, ok := kept.Trusted(); ok {
			t.Error("trusted after the end")
		}
	})
}

func TestOptionsTellAllFaults(t *testing.T) {
	_, err := lease.New(nil, &lease.Options{
		TTL: time.Hour, Margin: -1, ReleaseTimeout: -1, MinBackoff: time.Minute, MaxBackoff: time.Second,
	})
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Fatalf("got %v, want ErrInvalid", err)
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("got %v, want four faults: ttl, margin, release timeout, max backoff", err)
	}
	for _, good := range []*lease.Options{nil, {}, {TTL: runstore.MinTTL}, {TTL: runstore.MaxTTL}, {MaxBackoff: time.Millisecond}, {MinBackoff: time.Minute}} {
		if _, err := lease.New(nil, good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, late := range []time.Duration{8 * time.Second, math.MaxInt64} {
		if _, err := lease.New(nil, &lease.Options{TTL: 9 * time.Second, Heartbeat: late}); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("a heartbeat of %v, too late for its TTL: got %v, want ErrInvalid", late, err)
		}
	}
}

func TestResolve(t *testing.T) {
	got, err := (*lease.Options)(nil).Resolve()
	want := lease.Options{
		TTL: 30 * time.Second, Heartbeat: 10 * time.Second, Margin: 3 * time.Second, RequestTimeout: 5 * time.Second,
		ReleaseTimeout: 5 * time.Second, DrainTimeout: 30 * time.Second, MinBackoff: time.Second, MaxBackoff: 10 * time.Second,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if again, err := got.Resolve(); err != nil || again != want {
		t.Errorf("resolved twice %+v, %v, want no change", again, err)
	}
}
