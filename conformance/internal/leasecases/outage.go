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

// outage is a time in which no handle reaches the store. Cases wait for it in real time, because an
// engine's clock cannot be moved.
type outage struct {
	leases              int
	ttl, lasts          time.Duration
	holding, contending runstore.RunStore // the handles of the holders and of the contenders
	begin, end          func()
}

// cutOff takes the network away, and resets all connections.
func cutOff(t harness.T, e *harness.Env) {
	o := outage{leases: e.Scaled(t, "leases under an outage", 10, e.Affordable(t, "leases under an outage", 200, 10)), ttl: 6 * time.Second}
	if o.leases > 10 { // a slow engine renews that many in a longer heartbeat only
		o.ttl = lease.DefaultTTL
	}
	o.lasts = 2 * o.ttl
	network := e.Network(t)
	open := func() runstore.RunStore {
		return harness.MustOpen(t, func() (runstore.RunStore, error) { return network.Open(t.Context()) })
	}
	o.holding, o.contending = open(), open()
	o.begin, o.end = network.Faults.Cut, network.Faults.Reset
	o.run(t, e)
}

// silent keeps the connections open and passes nothing.
func silent(t harness.T, e *harness.Env) {
	o := outage{leases: 4, ttl: 6 * time.Second, lasts: 9 * time.Second}
	network := e.Network(t)
	open := func() runstore.RunStore {
		return harness.MustOpen(t, func() (runstore.RunStore, error) { return network.Open(t.Context()) })
	}
	o.holding, o.contending = open(), open()
	o.begin, o.end = network.Faults.Blackhole, network.Faults.Reset
	o.run(t, e)
}

// frozen stops the server, which performs later what was sent to it meanwhile.
func frozen(t harness.T, e *harness.Env) {
	t.Cleanup(func() { _ = e.Server.Thaw() }) // for a case that ends early
	must := func(what string, do func() error) func() {
		return func() {
			if err := do(); err != nil {
				t.Fatalf("%s the server: %v", what, err)
			}
		}
	}
	outage{
		leases: 10, ttl: 6 * time.Second, lasts: 9 * time.Second, holding: e.Reopen(t), contending: e.Reopen(t),
		begin: must("freeze", e.Server.Freeze), end: must("thaw", e.Server.Thaw),
	}.run(t, e)
}

// down kills the server, and starts it again on its data.
func down(t harness.T, e *harness.Env) {
	o := outage{leases: e.Scaled(t, "leases under an outage", 10, e.Affordable(t, "leases under an outage", 200, 10)), ttl: 6 * time.Second, holding: e.Reopen(t), contending: e.Reopen(t)}
	if o.leases > 10 {
		o.ttl = lease.DefaultTTL
	}
	o.lasts = 2 * o.ttl
	o.begin = func() {
		if err := e.Server.Kill(); err != nil {
			t.Fatalf("kill the server: %v", err)
		}
	}
	o.end = func() {
		ctx, cancel := context.WithTimeout(t.Context(), harness.CaseTimeout)
		defer cancel()
		if err := e.Server.Restart(ctx); err != nil {
			t.Fatalf("start the server again: %v", err)
		}
	}
	o.run(t, e)
}

// run holds leases with a grace, lets contenders wait for each, and checks after the outage that each
// lease of a live holder is where it was, and that no run shows the writes of two holders at a time.
func (o outage) run(t harness.T, e *harness.Env) {
	leases, outageTTL, holding, contending := o.leases, o.ttl, o.holding, o.contending
	opts := &lease.Options{TTL: outageTTL, Grace: harness.CaseTimeout, MinBackoff: 100 * time.Millisecond, MaxBackoff: outageTTL / 4}
	holders, err := lease.New(holding, opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	refusing := &refusals{RunStore: contending, runs: map[runstore.RunID]bool{}}
	contenders, err := lease.New(refusing, opts)
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
				return write(ctx, holding, h, outageTTL/6)
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
			_ = contenders.Hold(ctx, granted, func(ctx context.Context, h *lease.Held) error {
				return write(ctx, contending, h, outageTTL/6)
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
	// A contender that has not yet seen the lease held may have its first request under way.
	e.Await(t, harness.CaseTimeout, func() bool { return refusing.count() == leases })
	mu.Lock()
	cut = true // a holder that a busy machine has stopped for a TTL may have lost its lease before
	started := len(held)
	mu.Unlock()
	o.begin()
	began := time.Now()
	e.Await(t, harness.CaseTimeout, func() bool { _, n := trusted(); return time.Since(began) > o.lasts && n == 0 })
	o.end()
	back := time.Now()
	e.AwaitState(t, harness.CaseTimeout, func() bool { _, n := trusted(); return n == started || t.Failed() }, func() string {
		_, n := trusted()
		return fmt.Sprintf("%d of %d holders trust their lease", n, started)
	})
	t.Logf("%d holders renewed within %v of an outage of %v", started, time.Since(back).Round(time.Millisecond), o.lasts)
	// The contenders' grace has passed when the dead holder's run is taken over.
	e.Await(t, harness.CaseTimeout, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken[dead] || t.Failed()
	})
	mu.Lock()
	defer mu.Unlock()
	for i := range leases {
		journal := kit.Journal(t, e.Store, id(i))
		for j := 1; j < len(journal); j++ {
			if journal[j].Token < journal[j-1].Token {
				t.Errorf("run %d: seq %d is under token %v, after one under %v", i, journal[j].Seq, journal[j].Token, journal[j-1].Token)
			}
		}
	}
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

// refusals is a store that remembers for which runs it has refused a lease.
type refusals struct {
	runstore.RunStore
	mu   sync.Mutex
	runs map[runstore.RunID]bool
}

// Unwrap gives access to the store's capabilities.
func (r *refusals) Unwrap() runstore.RunStore { return r.RunStore }

// AcquireLease implements runstore.RunStore.
func (r *refusals) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := r.RunStore.AcquireLease(ctx, req)
	if err == nil || errors.Is(err, runstore.ErrLeaseHeld) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runs[req.Run] = true
	}
	return granted, err
}

func (r *refusals) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs)
}

// write appends events under the lease until the work's context ends or the store refuses the fence.
func write(ctx context.Context, s runstore.RunStore, h *lease.Held, every time.Duration) error {
	for {
		b := runstore.NewBatch(h.Lease().Run, h.Fence())
		b.Append("work", nil)
		sent, cancel := context.WithTimeout(ctx, every)
		_, err := s.Commit(sent, b)
		cancel()
		if errors.Is(err, runstore.ErrFenced) {
			return err
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
