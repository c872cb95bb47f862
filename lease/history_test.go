package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/internal/history"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestHistories lets drivers hold a lease, hand it off, abandon it and lose it in outages, while an
// operator breaks it and replies get lost. What they see has to be the history of a lease that changes
// in one step at a time: no lease is trusted that another grant has ended, and what a holder learns of
// its end agrees with what the next one learns.
func TestHistories(t *testing.T) {
	ends := map[runstore.GrantEnd]int{}
	for seed := range uint64(effort.Choose(25, 3000)) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &histories{store: memory.New(nil).Open(), log: &history.Log{}, ends: ends}
				h.run(t, rand.New(rand.NewPCG(seed, 1)))
			})
		}) {
			return
		}
	}
	for _, end := range []runstore.GrantEnd{runstore.EndReleased, runstore.EndHandedOff, runstore.EndExpired, runstore.EndRevoked} {
		if ends[end] == 0 {
			t.Errorf("no grant was %v: %v", end, ends)
		}
	}
	t.Logf("the ends of the grants: %v", ends)
}

// histories is one random history of a lease.
type histories struct {
	store runstore.RunStore
	log   *history.Log

	mu   sync.Mutex
	ends map[runstore.GrantEnd]int // how grants ended, as the next holders read it
}

func (h *histories) run(t *testing.T, r *rand.Rand) {
	if _, err := h.store.CreateRun(t.Context(), runstore.RunSpec{ID: run}); err != nil {
		t.Fatal(err)
	}
	const clients = 4
	var all sync.WaitGroup
	var nets []*history.Flaky
	for i := range clients {
		net := history.NewFlaky(h.store, rand.New(rand.NewPCG(r.Uint64(), 0)))
		nets = append(nets, net)
		mine := rand.New(rand.NewPCG(r.Uint64(), 0))
		all.Go(func() { h.drive(t, i, h.log.Through(i, net), mine) })
	}
	operator := h.log.Through(clients, history.NewFlaky(h.store, rand.New(rand.NewPCG(r.Uint64(), 0))))
	for range 5 {
		elapse(time.Duration(r.IntN(120)) * time.Second)
		_, _ = lease.Break(t.Context(), operator, lease.BreakRequest{Run: run, Whoever: true, Operator: "operator", Reason: "test"})
		down := nets[r.IntN(clients)]
		down.Cut(true)
		elapse(time.Duration(r.IntN(90)) * time.Second)
		down.Cut(false)
	}
	all.Wait()
	h.log.Check(t)
}

// drive acquires the lease some times, and works under it.
func (h *histories) drive(t *testing.T, client int, store runstore.RunStore, r *rand.Rand) {
	keeper, err := lease.New(store, &lease.Options{Handoff: lease.HandoffMode(r.IntN(3)), Grace: time.Duration(r.IntN(2)) * time.Minute})
	if err != nil {
		t.Error(err)
		return
	}
	for range 6 {
		elapse(time.Duration(r.IntN(60)) * time.Second)
		acquire := keeper.Acquire
		if r.IntN(3) == 0 {
			acquire = keeper.RequestHandoff
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(240))*time.Second)
		granted, err := acquire(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint("driver-", client))}})
		if cancel(); err != nil {
			continue // gave up
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(180))*time.Second)
		if r.IntN(8) == 0 {
			cancel() // stopped before its work
		}
		abandoned := true // if the work does not run
		err = keeper.Hold(ctx, granted, func(ctx context.Context, held *lease.Held) error {
			abandoned = r.IntN(8) == 0
			if abandoned {
				held.Abandon()
			}
			if head, err := store.GetRun(ctx, run); err == nil && head.Token == held.Fence().Token() {
				h.mu.Lock()
				h.ends[head.Holder.Former]++
				h.mu.Unlock()
			}
			return h.work(ctx, client, store, held, r)
		})
		h.log.Ended(client, granted, err, abandoned)
		cancel()
	}
}

// work commits steps, also after the end of its context, and asks whether its lease is trusted.
func (h *histories) work(ctx context.Context, client int, store runstore.RunStore, held *lease.Held, r *rand.Rand) error {
	for n := 3 + r.IntN(20); n > 0 && ctx.Err() == nil; n-- {
		h.log.Trusted(client, held)
		b := runstore.NewBatch(run, held.Fence())
		b.Append("step", nil)
		sent, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		_, err := store.Commit(sent, b)
		if cancel(); errors.Is(err, runstore.ErrFenced) {
			return err
		}
		elapse(time.Duration(r.IntN(8000)) * time.Millisecond)
	}
	h.log.Trusted(client, held)
	return context.Cause(ctx)
}
