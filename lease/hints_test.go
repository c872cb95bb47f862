package lease_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

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
