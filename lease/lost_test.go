package lease_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// untilCancelled is work that notes when its context ended, and returns then.
func untilCancelled(at *time.Time) lease.Work {
	return func(ctx context.Context, _ *lease.Held) error {
		<-ctx.Done()
		*at = time.Now()
		return ctx.Err()
	}
}

func TestSilentStoreEndsTheWorkBeforeTheExpiry(t *testing.T) {
	for name, obedient := range map[string]bool{"honouring its context": true, "ignoring its context": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				freed := make(chan struct{})
				f.renew = func(ctx context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					switch {
					case n == 1:
						return next()
					case obedient:
						return runstore.Renewed{}, hang(ctx)
					default:
						<-freed
						return runstore.Renewed{}, unavailable()
					}
				}
				began := time.Now()
				var at, expires time.Time
				err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
					err := untilCancelled(&at)(ctx, held)
					expires = f.head().ExpiresAt
					return err
				})
				if !errors.Is(err, lease.ErrLost) || !errors.Is(err, lease.ErrExpired) {
					t.Errorf("got %v, want ErrLost and ErrExpired", err)
				}
				if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v passes for the end of a context", err)
				}
				// Trust: TTL - margin from when the first renewal was sent.
				if got, want := at.Sub(began), f.renewed()[0]+27*time.Second; got != want {
					t.Errorf("cancelled after %v, want %v", got, want)
				}
				if !at.Before(expires) {
					t.Errorf("cancelled at %v, not before the store's expiry at %v", at, expires)
				}
				f.wantFree() // an expired lease is released: it may still have stood
				close(freed)
			})
		})
	}
}

func TestRenewalsAreRetriedSoonerThanAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var budgets []time.Duration
		f.renew = func(ctx context.Context, _ int, _ func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			deadline, _ := ctx.Deadline()
			budgets = append(budgets, time.Until(deadline))
			return runstore.Renewed{}, hang(ctx)
		}
		began := time.Now()
		var at time.Time
		err := f.keeper(nil).Do(t.Context(), request(), untilCancelled(&at))
		var lost *lease.LostError
		if !errors.As(err, &lost) || !errors.Is(lost.Last, runstore.ErrUnknownOutcome) {
			t.Errorf("got %v, want a LostError with the last failure", err)
		}
		if got, want := at.Sub(began), 27*time.Second; got != want {
			t.Errorf("cancelled after %v, want %v", got, want)
		}
		if n := len(budgets); n < 3 {
			t.Errorf("%d attempts in the trusted time, want at least 3", n)
		}
		for i, sent := range f.renewed() {
			if left := 27*time.Second - sent; budgets[i] <= 0 || budgets[i] > left/2 || budgets[i] > 5*time.Second {
				t.Errorf("attempt %d had %v with %v of trust left", i+1, budgets[i], left)
			}
		}
	})
}

func TestOneFailedRenewalIsNotTheEnd(t *testing.T) {
	failures := map[string]func(ctx context.Context, next func() (runstore.Renewed, error)) error{
		"unavailable": func(context.Context, func() (runstore.Renewed, error)) error { return unavailable() },
		"silent":      func(ctx context.Context, _ func() (runstore.Renewed, error)) error { return hang(ctx) },
		"applied, reply lost": func(ctx context.Context, next func() (runstore.Renewed, error)) error {
			_, _ = next()
			return hang(ctx)
		},
		"not classified": func(context.Context, func() (runstore.Renewed, error)) error { return errors.New("connection reset") },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(ctx context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					if n == 1 {
						return runstore.Renewed{}, fail(ctx, next)
					}
					return next()
				}
				if err := f.keeper(nil).Do(t.Context(), request(), wait(time.Minute)); err != nil {
					t.Fatal(err)
				}
				got := f.renewed()
				if retry := got[1] - got[0]; retry <= 0 || retry > 6*time.Second {
					t.Errorf("retried after %v, want soon after the failure", retry)
				}
				if next := got[2] - got[1]; next < 8*time.Second || next > 10*time.Second {
					t.Errorf("next heartbeat %v after the success, want 8s to 10s", next)
				}
				f.wantFree()
			})
		})
	}
}

func TestDefiniteRefusalEndsTheWorkAtOnce(t *testing.T) {
	refusals := []error{
		&runstore.FencedError{Presented: 1, Current: 2}, runstore.ErrNotFound, runstore.ErrLeaseExpired,
		&runstore.StoreBehindError{Field: "token", Presented: 1}, runstore.ErrClosed, runstore.ErrNoProgress,
	}
	for _, refusal := range refusals {
		t.Run(runstore.KindOf(refusal).Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: refusal}
				}
				began := time.Now()
				var at time.Time
				err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
					<-ctx.Done()
					at = time.Now()
					if !errors.Is(context.Cause(ctx), lease.ErrLost) {
						t.Errorf("cause is %v, want ErrLost", context.Cause(ctx))
					}
					if _, ok := held.Trusted(); ok {
						t.Error("trusted after the loss")
					}
					var late runstore.Writes
					late.Append("late", nil)
					held.ReleaseWith(late)
					return nil // it did not notice; the keeper did
				})
				if !errors.Is(err, lease.ErrLost) || !errors.Is(err, refusal) || errors.Is(err, lease.ErrExpired) {
					t.Errorf("got %v, want ErrLost because of %v", err, refusal)
				}
				if took := at.Sub(began); took != f.renewed()[0] {
					t.Errorf("stopped after %v, want at the heartbeat", took)
				}
				if len(f.renewed()) != 1 || len(f.releases) != 0 || f.head().LastSeq != 0 {
					t.Error("the store was asked again after it had refused")
				}
			})
		})
	}
}

func TestFencedHolderLearnsWhoTookOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		time.AfterFunc(12*time.Second, func() { f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}) })
		var at time.Time
		began := time.Now()
		err := f.keeper(nil).Do(t.Context(), request(), untilCancelled(&at))
		var fenced *runstore.FencedError
		if !errors.As(err, &fenced) || fenced.Holder.Owner != "agent-b" || fenced.Current != 2 {
			t.Errorf("got %v, want fenced by agent-b under token 2", err)
		}
		renewed := f.renewed()
		wantIntervals(t, renewed, 10*time.Second)
		if took := at.Sub(began); took != renewed[len(renewed)-1] || len(renewed) > 1 && renewed[len(renewed)-2] > 12*time.Second {
			t.Errorf("stopped after %v, want at the first heartbeat after the takeover at 12s; they were at %v", took, renewed)
		}
		if h := f.head().Holder; h.Owner != "agent-b" {
			t.Errorf("holder is %q, want the successor untouched", h.Owner)
		}
	})
}

func TestSlowReplyStretchesNoTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(ctx context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			if n > 1 {
				return runstore.Renewed{}, hang(ctx)
			}
			l, err := next()
			elapse(4 * time.Second)
			return l, err
		}
		began := time.Now()
		var at time.Time
		var until time.Time
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			elapse(15 * time.Second)
			until, _ = held.Trusted()
			return untilCancelled(&at)(ctx, held)
		})
		if !errors.Is(err, lease.ErrExpired) {
			t.Errorf("got %v, want ErrExpired", err)
		}
		wantIntervals(t, f.renewed()[:2], 10*time.Second) // they count from when the request left, too
		want := f.renewed()[0] + 27*time.Second
		if got := until.Sub(began); got != want {
			t.Errorf("trusted for %v, want %v: from when the request left", got, want)
		}
		if got := at.Sub(began); got != want {
			t.Errorf("cancelled after %v, want %v", got, want)
		}
	})
}

func TestSlowGrantStretchesNoTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire = func(_ context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			l, err := next()
			elapse(4 * time.Second)
			return l, err
		}
		f.renew = func(ctx context.Context, _ int, _ func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			return runstore.Renewed{}, hang(ctx)
		}
		began := time.Now()
		var at time.Time
		_ = f.keeper(nil).Do(t.Context(), request(), untilCancelled(&at))
		if got := at.Sub(began); got != 27*time.Second {
			t.Errorf("cancelled after %v, want 27s from when the request left", got)
		}
	})
}

func TestStrictLeaseIsOverAtItsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := request()
		req.Strict = true
		time.AfterFunc(time.Second, func() { f.shared.Advance(time.Minute) }) // the store clock outruns ours
		var at time.Time
		began := time.Now()
		err := f.keeper(nil).Do(t.Context(), req, untilCancelled(&at))
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrLeaseExpired) {
			t.Errorf("got %v, want ErrLost because of ErrLeaseExpired", err)
		}
		if got := at.Sub(began); got != f.renewed()[0] {
			t.Errorf("stopped after %v, want at the heartbeat", got)
		}
	})
}

func TestWorkErrorIsJoinedWithTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			return runstore.Renewed{}, runstore.ErrNotFound
		}
		broken := errors.New("broken")
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, _ *lease.Held) error {
			<-ctx.Done()
			return broken
		})
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, broken) {
			t.Errorf("got %v, want the loss and the work's error", err)
		}
	})
}

func TestPanicAfterTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			return runstore.Renewed{}, runstore.ErrClosed
		}
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v, want the work's own panic", v)
			}
		}()
		_ = f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, _ *lease.Held) error {
			<-ctx.Done()
			panic("boom")
		})
	})
}

// A renewal that fails with an error that says nothing about the grant, as one with credentials that have
// just been replaced, does not end the lease. It is tried again while the lease is trusted.
func TestRenewalErrorThatSaysNothingAboutTheGrant(t *testing.T) {
	for _, kind := range []error{runstore.ErrInvalid, runstore.ErrUnsupported, runstore.ErrCorrupt, runstore.ErrConflict} {
		t.Run(kind.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				failures := 1
				f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					if n <= failures {
						return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: kind}
					}
					return next()
				}
				if err := f.keeper(nil).Do(t.Context(), request(), wait(time.Minute)); err != nil {
					t.Errorf("after one failure: %v, want the lease kept", err)
				}
				failures = math.MaxInt
				began := time.Now()
				var at time.Time
				err := f.keeper(nil).Do(t.Context(), request(), untilCancelled(&at))
				var lost *lease.LostError
				if !errors.As(err, &lost) || !errors.Is(lost, lease.ErrExpired) || !errors.Is(lost.Last, kind) || !strings.Contains(err.Error(), kind.Error()) {
					t.Errorf("got %v, want ErrExpired that names %v", err, kind)
				}
				if took := at.Sub(began); took != 27*time.Second {
					t.Errorf("the work ended after %v, want at the end of the trusted time", took)
				}
			})
		})
	}
}

// Work whose context ended while the lease was renewed before it does not begin. The lease is revoked,
// also if the renewal succeeded, or failed with an error that no repeat mends.
func TestWorkDoesNotBegin(t *testing.T) {
	for name, test := range map[string]struct {
		cancel bool
		answer error
		want   error
	}{
		"cancelled, renewed":     {true, nil, context.Canceled},
		"cancelled, not renewed": {true, runstore.ErrInvalid, context.Canceled},
		"not renewed":            {false, runstore.ErrInvalid, runstore.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					renewed, err := next()
					if test.answer != nil {
						renewed, err = runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: test.answer}
					}
					if test.cancel {
						cancel()
					}
					return renewed, err
				}
				granted := f.grant(agent)
				granted.Sent = time.Time{}
				err := f.keeper(nil).Hold(ctx, granted, func(context.Context, *lease.Held) error {
					t.Error("the work began")
					return nil
				})
				if !errors.Is(err, test.want) || errors.Is(err, lease.ErrLost) == test.cancel {
					t.Errorf("got %v, want %v", err, test.want)
				}
				f.wantFree()
				f.wantFormer(runstore.EndRevoked)
			})
		})
	}
}

// Work whose context has ended, and that goes on to clean up, sees by Done that its lease is lost.
func TestLossAfterTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		var kept *lease.Held
		err := f.keeper(nil).Do(ctx, request(), func(ctx context.Context, held *lease.Held) error {
			cancel()
			<-ctx.Done()
			elapse(time.Minute)
			select {
			case <-held.Done():
				t.Error("done while the lease is held")
			default:
			}
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
			<-held.Done()
			if _, ok := held.Trusted(); ok {
				t.Error("trusted after the loss")
			}
			return nil
		})
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrLost because of ErrFenced", err)
		}
		elapse(time.Hour) // the successor's lease expires
		if err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
			kept = held
			return nil
		}); err != nil {
			t.Error(err)
		}
		<-kept.Done() // the work has returned
	})
}
