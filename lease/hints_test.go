package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// silentWakeups is a store that answers no subscription.
type silentWakeups struct{ *memory.Handle }

func (silentWakeups) RunWakeups(ctx context.Context, _ runstore.RunID, _ runstore.WakeOn) (<-chan struct{}, error) {
	return nil, hang(ctx)
}

// TestSubscriptionThatHangs checks that a contender polls while the store does not answer its subscription.
func TestSubscriptionThatHangs(t *testing.T) {
	for name, contend := range map[string]func(k *lease.Keeper, ctx context.Context, req runstore.AcquireRequest) (lease.Granted, error){
		"acquire":         (*lease.Keeper).Acquire,
		"request handoff": (*lease.Keeper).RequestHandoff,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second})
				keeper, err := lease.New(silentWakeups{f.shared.Open()}, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if _, err := contend(keeper, ctx, request()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(f.began); took < 30*time.Second || took > 32*time.Second {
					t.Errorf("acquired after %v, want right after the expiry at 30s", took)
				}
			})
		})
	}
}

// TestHolderPollsForHandoffs checks that a holder finds a request while the store does not answer its
// subscription.
func TestHolderPollsForHandoffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		keeper, err := lease.New(silentWakeups{f.shared.Open()}, &lease.Options{Handoff: lease.Gap})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			elapse(time.Second)
			_, _ = f.keeper(nil).RequestHandoff(t.Context(), successorRequest())
		}()
		err = keeper.Do(t.Context(), request(), wait(time.Hour))
		if !errors.Is(err, lease.ErrHandedOff) {
			t.Errorf("got %v, want ErrHandedOff", err)
		}
	})
}

// counting counts the requests for leases.
type counting struct {
	*memory.Handle
	asked atomic.Int64
}

func (c *counting) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	c.asked.Add(1)
	return c.Handle.AcquireLease(ctx, req)
}

// A release wakes the contenders without delay and costs each of them one request. Commits of the
// holder and to other runs wake no contender.
func TestReleaseWakesContenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 64
		store := memory.New(nil)
		driver := store.Open()
		for _, id := range []runstore.RunID{"run", "other"} {
			if _, err := driver.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		contended := &counting{Handle: store.Open()}
		granted := make(chan lease.Granted)
		opts := &lease.Options{TTL: 10 * time.Minute, MinBackoff: time.Hour, MaxBackoff: time.Hour} // they never poll
		for i := range waiters {
			keeper, err := lease.New(contended, opts)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				got, err := keeper.Acquire(t.Context(), runstore.AcquireRequest{
					Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint("owner-", i))},
				})
				if err != nil {
					t.Error(err)
				}
				granted <- got
			}()
		}
		for left := waiters; left > 0; left-- {
			holder := <-granted
			synctest.Wait() // all other contenders have been refused
			before := contended.asked.Load()
			for _, b := range []runstore.Batch{runstore.NewBatch("run", holder.Lease.Fence()), runstore.NewBatch("other", runstore.Unguarded("test"))} {
				b.Append("work", nil)
				if _, err := driver.Commit(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if n := contended.asked.Load() - before; n > 0 {
				t.Fatalf("%d requests after commits, want none", n)
			}
			released := time.Now()
			if _, err := driver.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: holder.Lease.Fence()}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := contended.asked.Load() - before; n != int64(left-1) {
				t.Errorf("a release costs %d waiters %d requests", left-1, n)
			}
			// In the bubble time passes only while every goroutine waits for a timer.
			if waited := time.Since(released); waited > 0 {
				t.Errorf("the next holder waited for %v", waited)
			}
		}
	})
}
