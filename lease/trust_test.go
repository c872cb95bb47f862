package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// bench is a keeper on a fresh store whose wall clock can be set apart.
func bench(t *testing.T) (*Keeper, *memory.Store, *atomic.Int64) {
	shared := memory.New(nil)
	k, err := New(shared.Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64
	k.wall = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	if _, err := shared.Open().CreateRun(t.Context(), runstore.RunSpec{ID: "run-1"}); err != nil {
		t.Fatal(err)
	}
	return k, shared, &ahead
}

func request() runstore.AcquireRequest {
	return runstore.AcquireRequest{Run: "run-1", LeaseSpec: runstore.LeaseSpec{Owner: "agent-a"}}
}

func TestWallClockThatWasSetLosesNoLease(t *testing.T) {
	for name, step := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, _, ahead := bench(t)
				err := k.Do(t.Context(), request(), func(ctx context.Context, held *Held) error {
					elapse(suspendInterval / 2) // not when the keeper looks at the wall clock
					ahead.Store(int64(step))
					_, ok := held.Trusted()
					if want := step < 0; ok != want {
						t.Errorf("trusted is %v right after the step, want %v", ok, want)
					}
					synctest.Wait() // the renewal that the doubt asked for
					until, ok := held.Trusted()
					if !ok {
						t.Error("not trusted after the renewal")
					}
					if left := time.Until(until); step > 0 && left != 27*time.Second {
						t.Errorf("%v of trust left, want 27s: renewed at once", left)
					}
					elapse(2 * time.Minute)
					return ctx.Err()
				})
				if err != nil {
					t.Errorf("got %v, want the lease kept", err)
				}
			})
		})
	}
}

// A suspended machine: the store clock and the wall clock went on, the
// monotonic clock and the timers did not.
func TestHolderThatWakesFromASuspensionFindsOutBeforeItActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, shared, ahead := bench(t)
		err := k.Do(t.Context(), request(), func(ctx context.Context, held *Held) error {
			elapse(suspendInterval / 2) // not when the keeper looks at the wall clock
			suspend(t, shared, ahead)
			if _, ok := held.Trusted(); ok {
				t.Error("trusted after ten minutes without a renewal")
			}
			synctest.Wait()
			if !errors.Is(context.Cause(ctx), runstore.ErrFenced) {
				t.Errorf("cause is %v, want fenced by the renewal that the doubt asked for", context.Cause(ctx))
			}
			return ctx.Err()
		})
		if !errors.Is(err, ErrLost) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrLost because of ErrFenced", err)
		}
	})
}

// suspend stands for a suspend of ten minutes in which another holder was granted the lease.
func suspend(t *testing.T, shared *memory.Store, ahead *atomic.Int64) {
	ahead.Store(int64(10 * time.Minute))
	shared.Advance(10 * time.Minute)
	req := request()
	req.Owner, req.TTL = "agent-b", time.Minute
	if _, err := shared.Open().AcquireLease(t.Context(), req); err != nil {
		t.Error(err)
	}
}

// After a suspend the lease of work that never calls Trusted is renewed long before its heartbeat is due.
// The keeper looks at all of its leases, also at those that it holds after a time without any.
func TestSuspendIsNoticedBeforeTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, shared, ahead := bench(t)
		if _, err := shared.Open().CreateRun(t.Context(), runstore.RunSpec{ID: "run-2"}); err != nil {
			t.Fatal(err)
		}
		other := request()
		other.Run = "run-2"
		for range 2 {
			err := k.Do(t.Context(), other, func(ctx context.Context, held *Held) error {
				return k.Do(ctx, request(), func(ctx context.Context, _ *Held) error {
					elapse(suspendInterval / 2)
					suspend(t, shared, ahead)
					began := time.Now()
					<-ctx.Done()
					if took := time.Since(began); took > suspendInterval {
						t.Errorf("the work ended after %v, want at the next look at the wall clock", took)
					}
					synctest.Wait()
					if until, ok := held.Trusted(); !ok || time.Until(until) != 27*time.Second {
						t.Errorf("the other lease is trusted until %v, %v; want renewed at once", until, ok)
					}
					return nil
				})
			})
			if !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("got %v, want ErrFenced", err)
			}
			shared.Advance(2 * time.Minute) // the successor's lease expires
			ahead.Store(0)
		}
	})
}

// A stopped process (SIGSTOP): the clocks go on, and when it runs again the work
// may be scheduled before the watchdog. Here the watchdog never gets to run.
func TestTrustedLooksAtTheClockNotAtTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _, _ := bench(t)
		granted, err := k.TryAcquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		held := k.newHeld(granted)
		elapse(27*time.Second - time.Nanosecond)
		if _, ok := held.Trusted(); !ok {
			t.Error("not trusted within TTL less margin")
		}
		elapse(time.Nanosecond)
		if _, ok := held.Trusted(); ok {
			t.Error("trusted at TTL less margin")
		}
	})
}

// Waking late, the watchdog finds the heartbeat, the answer of a renewal and the
// end of trust due at once. The answer counts if it still gives trust.
func TestLateWatchdogCountsTheAnswerThatCameMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		sent time.Duration // when the renewal had left, after the grant
		lost bool
	}{"still trusted": {10 * time.Second, false}, "over too": {0, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, _, _ := bench(t)
				granted, err := k.TryAcquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				held := k.newHeld(granted)
				ctx, cancel := context.WithCancelCause(t.Context())
				held.cancel = cancel
				elapse(c.sent)
				r := held.renew(t.Context())
				elapse(30*time.Second - c.sent)

				b := newHeartbeats(held)
				defer b.stop()
				b.flight = make(chan renewal, 1)
				b.flight <- r
				if kept := b.checkExpiry(); kept == c.lost {
					t.Errorf("kept is %v, want %v", kept, !c.lost)
				}
				if got := errors.Is(context.Cause(ctx), ErrExpired); got != c.lost {
					t.Errorf("cause is %v, lost should be %v", context.Cause(ctx), c.lost)
				}
			})
		})
	}
}

func TestUntrustedLeaseIsRenewedBeforeTheWorkBegins(t *testing.T) {
	for name, late := range map[string]time.Duration{"sent is not known": -1, "trust is over": 28 * time.Second, "expired, not taken over": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, _, _ := bench(t)
				granted, err := k.TryAcquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				if late < 0 {
					granted.Sent = time.Time{}
				} else {
					elapse(late)
				}
				err = k.Hold(t.Context(), granted, func(_ context.Context, held *Held) error {
					if until, ok := held.Trusted(); !ok || time.Until(until) != 27*time.Second {
						t.Errorf("trusted until %v, %v; want 27s from now", until, ok)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestLeaseThatWasTakenOverBeforeTheWorkBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _, _ := bench(t)
		granted, err := k.TryAcquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		elapse(time.Minute)
		if _, err := k.TryAcquire(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		err = k.Hold(t.Context(), granted, func(context.Context, *Held) error {
			t.Error("the work ran, want it not begun")
			return nil
		})
		if !errors.Is(err, ErrLost) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrLost because of ErrFenced", err)
		}
	})
}

// elapse lets virtual time pass: every test that calls it runs in a bubble.
func elapse(d time.Duration) { <-time.After(d) }
