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

// attempts is how often run repeats an outage, each time with a TTL twice as long and half the leases, on
// a machine that is too slow for the holders to renew in time: 5, up to 16 times the first TTL.
const attempts = 5

// run holds leases with a grace, lets contenders wait for each, and checks after the outage that each
// lease of a live holder is where it was, and that no run shows the writes of two holders at a time.
//
// A holder that the machine keeps from renewing for a TTL loses its lease rightly. An attempt in which all
// holders do proves nothing, and neither does one in which requests go unanswered for the whole grace.
func (o outage) run(t harness.T, e *harness.Env) {
	for n := range attempts {
		kept, starved := o.attempt(t, e, n)
		if kept > 0 && starved == 0 || t.Failed() {
			return
		}
		t.Logf("with a TTL of %v, %d of %d holders renewed after the outage, and %d had no answer: this machine is too slow for it", o.ttl, kept, o.leases-1, starved)
		o.ttl, o.lasts, o.leases = 2*o.ttl, 2*o.lasts, max(4, o.leases/2)
	}
	t.Fatalf("too few holders renewed after each of %d outages", attempts)
}

// attempt does what run describes, once. It returns how many live holders kept their leases, and how many
// gave up because no renewal was answered during their grace.
func (o outage) attempt(t harness.T, e *harness.Env, n int) (kept, starved int) {
	opts := &lease.Options{TTL: o.ttl, Grace: harness.CaseTimeout, MinBackoff: 100 * time.Millisecond, MaxBackoff: o.ttl / 4}
	holding, contending := newObserved(o.holding), newObserved(o.contending)
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
	defer running.Wait()
	defer stop()

	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprintf("run-%d-%d", n, i)) }
	var mu sync.Mutex
	held, lost := map[int]*lease.Held{}, map[int]error{}
	gone := 0      // how many holders lost their lease before the outage
	cut := false   // the outage has begun
	const dead = 0 // the index of the run whose holder is dead
	for i := range o.leases {
		e.Create(t, id(i))
		if i == dead {
			kit.MustAcquire(t, e.Store, kit.Acquiring(id(i), "dead", o.ttl))
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
				return write(ctx, holding, h, o.ttl/6)
			})
			if !errors.Is(err, lease.ErrLost) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			delete(held, i)
			if cut {
				lost[i] = err
			} else {
				gone++
			}
		}))
	}
	for i := range o.leases {
		running.Go(panics.Guarded(t, func() {
			granted, err := contenders.Acquire(ctx, runstore.AcquireRequest{Run: id(i), LeaseSpec: runstore.LeaseSpec{Owner: "contender"}})
			if err != nil {
				return // the attempt has ended
			}
			_ = contenders.Hold(ctx, granted, func(ctx context.Context, h *lease.Held) error {
				return write(ctx, contending, h, o.ttl/6)
			})
		}))
	}
	// trusted returns how many holders trust their lease.
	trusted := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, h := range held {
			if _, ok := h.Trusted(); ok {
				n++
			}
		}
		return n
	}
	e.Await(t, harness.CaseTimeout, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(held)+gone == o.leases-1
	})
	// A contender that has not yet seen the lease held may have its first request under way.
	e.Await(t, harness.CaseTimeout, func() bool { return contending.answeredRuns() == o.leases })
	mu.Lock()
	cut = true // a holder that a busy machine has stopped for a TTL may have lost its lease before
	mu.Unlock()
	before := time.Now()
	o.begin()
	began := time.Now()
	e.Await(t, harness.CaseTimeout, func() bool { return time.Since(began) > o.lasts && trusted() == 0 })
	ended := time.Now()
	o.end()
	// A busy machine may renew so slowly that the holders never all trust their leases at one time.
	renewed := func() (holders, n int) {
		mu.Lock()
		defer mu.Unlock()
		for i := range held {
			if holding.lastRenewal(id(i)).After(ended) {
				n++
			}
		}
		return len(held), n
	}
	e.AwaitState(t, harness.CaseTimeout, func() bool { holders, n := renewed(); return n == holders }, func() string {
		holders, n := renewed()
		return fmt.Sprintf("%d of %d holders have renewed their lease", n, holders)
	})
	// The contenders' grace has passed when the dead holder's run is taken over.
	e.Await(t, harness.CaseTimeout, func() bool { return !contending.grantedAt(id(dead)).IsZero() })

	// late reports whether a contender that took the lease of run i waited for as long as it must: a TTL
	// from the holder's last renewal or, if none since the outage was answered, from the end of the outage:
	// the store may have applied a renewal whose reply came too late for the holder. A request that was sent
	// before the outage asked for a lease that had expired, and the store may have granted it at any time.
	// An engine may count a TTL from a round trip of Now before the renewal, on a busy machine up to a second.
	early := min(time.Second, o.ttl/4)
	late := func(i int) bool {
		granted, from := contending.grantedAt(id(i)), ended
		if !granted.IsZero() && contending.askedAt(id(i)).Before(before) {
			return true
		}
		if last := holding.lastRenewal(id(i)); last.After(from) {
			from = last
		}
		return !granted.IsZero() && !granted.Before(from.Add(o.ttl-early))
	}
	mu.Lock()
	defer mu.Unlock()
	for i, err := range lost {
		var fenced *runstore.FencedError
		if !errors.As(err, &fenced) {
			t.Logf("holder of run %d: %v", i, err)
			starved++
			continue
		}
		if fenced.Current <= fenced.Presented {
			t.Errorf("holder of run %d: %v: no contender was granted the lease", i, err)
			continue
		}
		e.Await(t, harness.CaseTimeout, func() bool { return !contending.grantedAt(id(i)).IsZero() })
		if !late(i) {
			since := func(at time.Time) time.Duration { return at.Sub(ended).Round(time.Millisecond) }
			t.Errorf("holder of run %d: %v: a contender took the lease within a TTL of the end of the outage or of a renewal: from the end, it asked at %v and had the answer at %v; the last renewal was sent at %v",
				i, err, since(contending.askedAt(id(i))), since(contending.grantedAt(id(i))), since(holding.lastRenewal(id(i))))
		}
	}
	for i := range o.leases {
		journal := kit.Journal(t, e.Store, id(i))
		for j := 1; j < len(journal); j++ {
			if journal[j].Token < journal[j-1].Token {
				t.Errorf("run %d: seq %d is under token %v, after one under %v", i, journal[j].Seq, journal[j].Token, journal[j-1].Token)
			}
		}
	}
	for i, h := range held {
		b := runstore.NewBatch(id(i), h.Fence())
		b.Append("after the outage", nil)
		_, err := e.Store.Commit(t.Context(), b)
		switch {
		case err == nil:
			kept++
		case !errors.Is(err, runstore.ErrFenced) || !late(i):
			t.Errorf("run %d is held by %q: the holder's write after the outage: %v", i, e.Get(t, id(i)).Holder.Owner, err)
		}
	}
	t.Logf("%d of %d leases kept over an outage of %v, TTL %v", kept, o.leases-1, o.lasts, o.ttl)
	return kept, starved
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
