package leasecases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// outageOfTwoTTLs takes the network away. The case waits for the outage in real time, because an
// engine's clock cannot be moved.
func outageOfTwoTTLs(t harness.T, e *harness.Env) {
	leases, outageTTL := e.Scaled(t, "leases under an outage", 10, e.Affordable(t, "leases under an outage", 200, 10)), 6*time.Second
	if leases > 10 { // a slow engine renews that many in a longer heartbeat only
		outageTTL = lease.DefaultTTL
	}
	network := e.Network(t)
	open := func() runstore.RunStore {
		return harness.MustOpen(t, func() (runstore.RunStore, error) { return network.Open(t.Context()) })
	}
	holding, contending := open(), open()
	opts := &lease.Options{TTL: outageTTL, Grace: harness.CaseTimeout, MinBackoff: 100 * time.Millisecond, MaxBackoff: outageTTL / 4}
	holders, err := lease.New(holding, opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	contenders, err := lease.New(contending, opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)

	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("run-", i)) }
	var mu sync.Mutex
	held := map[int]*lease.Held{}
	taken, cut := map[int]bool{}, false
	early := 0     // how many holders have lost their lease
	const dead = 0 // the index of the run whose holder is dead
	for i := range leases {
		e.Create(t, id(i))
		if i == dead {
			req := kit.Acquiring(id(i), "dead", outageTTL)
			kit.MustAcquire(t, e.Store, req)
			continue
		}
		granted, err := holders.Acquire(ctx, runstore.AcquireRequest{Run: id(i), LeaseSpec: runstore.LeaseSpec{Owner: "holder"}})
		if err != nil {
			t.Fatalf("acquire: %v", err)
		}
		running.Go(panics.Guarded(t, func() {
			err := holders.Hold(ctx, granted, func(ctx context.Context, h *lease.Held) error {
				mu.Lock()
				held[i] = h
				mu.Unlock()
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if !errors.Is(err, lease.ErrLost) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			delete(held, i)
			early++
			if cut {
				t.Errorf("holder of run %d: %v", i, err)
			}
		}))
	}
	for i := range leases {
		running.Go(panics.Guarded(t, func() {
			granted, err := contenders.Acquire(ctx, runstore.AcquireRequest{Run: id(i), LeaseSpec: runstore.LeaseSpec{Owner: "contender"}})
			if err != nil {
				return // the case has ended
			}
			mu.Lock()
			taken[i] = true
			mu.Unlock()
			_ = contenders.Hold(ctx, granted, func(ctx context.Context, _ *lease.Held) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}))
	}
	// trusted returns how many holders there are, and how many of them trust their lease.
	trusted := func() (holders, n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, h := range held {
			if _, ok := h.Trusted(); ok {
				n++
			}
		}
		return len(held), n
	}
	e.Await(t, harness.CaseTimeout, func() bool {
		holders, n := trusted()
		mu.Lock()
		defer mu.Unlock()
		return n == holders && holders+early == leases-1
	})
	mu.Lock()
	cut = true // a holder that a busy machine has stopped for a TTL may have lost its lease before
	started := len(held)
	mu.Unlock()
	network.Faults.Cut()
	began := time.Now()
	e.Await(t, harness.CaseTimeout, func() bool { _, n := trusted(); return time.Since(began) > 2*outageTTL && n == 0 })
	network.Faults.Reset()
	back := time.Now()
	e.AwaitState(t, harness.CaseTimeout, func() bool { _, n := trusted(); return n == started || t.Failed() }, func() string {
		_, n := trusted()
		return fmt.Sprintf("%d of %d holders trust their lease", n, started)
	})
	t.Logf("%d holders renewed within %v of an outage of %v", started, time.Since(back).Round(time.Millisecond), 2*outageTTL)
	// The contenders' grace has passed when the dead holder's run is taken over.
	e.Await(t, harness.CaseTimeout, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken[dead] || t.Failed()
	})
	mu.Lock()
	defer mu.Unlock()
	for i, h := range held {
		if run := e.Get(t, id(i)); run.Token != h.Fence().Token() {
			t.Errorf("run %d has token %v, and is held by %q: a lease that was renewed changed hands", i, run.Token, run.Holder.Owner)
		}
		b := runstore.NewBatch(id(i), h.Fence())
		b.Append("after the outage", nil)
		if _, err := e.Store.Commit(t.Context(), b); err != nil {
			t.Errorf("run %d: the holder's write after the outage: %v", i, err)
		}
	}
}
