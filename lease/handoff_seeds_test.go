package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// lossy loses replies: a call is applied and its outcome unknown, or it is not applied.
func lossy[T any](mu *sync.Mutex, r *rand.Rand) func(context.Context, int, func() (T, error)) (T, error) {
	return func(ctx context.Context, _ int, next func() (T, error)) (T, error) {
		mu.Lock()
		dice, late := r.IntN(12), time.Duration(r.IntN(20))*time.Millisecond
		mu.Unlock()
		elapse(late)
		var none T
		switch dice {
		case 0:
			_, _ = next()
			return none, &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome}
		case 1:
			return none, unavailable()
		default:
			return next()
		}
	}
}

// TestHandoffsOfManyDrivers lets drivers acquire, request and hand off one lease while replies get
// lost. The lease always comes free, tokens along the journal never fall, and in Gap mode no two
// pieces of work run at a time.
func TestHandoffsOfManyDrivers(t *testing.T) {
	for seed := range uint64(200) {
		mode := []lease.HandoffMode{lease.Gap, lease.Overlap}[seed%2]
		if !t.Run(fmt.Sprint(mode, " ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { handoffsOfManyDrivers(t, mode, seed) })
		}) {
			return
		}
	}
}

func handoffsOfManyDrivers(t *testing.T, mode lease.HandoffMode, seed uint64) {
	f := newFixture(t)
	var mu sync.Mutex // guards what follows
	r := rand.New(rand.NewPCG(seed, 0))
	var spans []span
	handoffs := 0
	between := func(least, most time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	f.acquire, f.renew, f.release = lossy[runstore.Granted](&mu, r), lossy[runstore.Renewed](&mu, r), lossy[runstore.Committed](&mu, r)
	keeper := f.keeper(&lease.Options{Handoff: mode, DrainTimeout: time.Hour})
	work := func(ctx context.Context, held *lease.Held) error {
		s := span{began: time.Now(), fence: held.Fence()}
		defer func() {
			s.ended = time.Now()
			mu.Lock()
			defer mu.Unlock()
			spans = append(spans, s)
		}()
		for until := time.Now().Add(between(time.Second, 2*time.Minute)); time.Now().Before(until) && ctx.Err() == nil; {
			b := runstore.NewBatch(run, held.Fence())
			b.Append("step", nil)
			if _, err := f.Commit(context.WithoutCancel(ctx), b); err != nil {
				return err
			}
			elapse(between(time.Second, 10*time.Second))
		}
		return context.Cause(ctx)
	}
	var drivers sync.WaitGroup
	for i := range 5 {
		drivers.Go(func() {
			for range 6 {
				elapse(between(0, 30*time.Second))
				req := runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint("driver-", i))}}
				acquire := keeper.Acquire
				if between(0, 2) == 1 {
					acquire = keeper.RequestHandoff
				}
				ctx, cancel := context.WithTimeout(t.Context(), between(time.Second, 3*time.Minute))
				granted, err := acquire(ctx, req)
				cancel()
				if err != nil {
					continue // gave up
				}
				worked := false
				switch err := keeper.Hold(t.Context(), granted, func(ctx context.Context, held *lease.Held) error {
					worked = true
					return work(ctx, held)
				}); {
				case errors.Is(err, lease.ErrHandedOff):
					mu.Lock()
					handoffs++
					mu.Unlock()
				case mode == lease.Gap && worked && errors.Is(err, lease.ErrLost) && !errors.Is(err, lease.ErrExpired):
					// A reservation may have expired before the successor learned of it; no later loss is due.
					t.Errorf("driver %d was fenced while it worked: %v", i, err)
				}
			}
		})
	}
	drivers.Wait()
	f.acquire, f.renew, f.release = nil, nil, nil
	elapse(lease.DefaultTTL) // of a lease whose release was lost
	if f.head().Live(time.Now()) {
		t.Error("a lease is live although all drivers have ended")
	}
	last := runstore.Token(0)
	for e, err := range runstore.Journal(t.Context(), f, run, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Token < last {
			t.Errorf("event %d has token %v after %v", e.Seq, e.Token, last)
		}
		last = e.Token
	}
	if handoffs == 0 {
		t.Error("no lease was handed off")
	}
	slices.SortFunc(spans, func(a, b span) int { return a.began.Compare(b.began) })
	for i := 1; i < len(spans) && mode == lease.Gap; i++ {
		if spans[i].began.Before(spans[i-1].ended) {
			t.Errorf("the work under token %v began %v before that under %v had ended",
				spans[i].fence.Token(), spans[i-1].ended.Sub(spans[i].began), spans[i-1].fence.Token())
		}
	}
}
