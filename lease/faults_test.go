package lease_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// faulty is a store whose lease methods fail as a test wants. Each call is noted
// with the time at which it came in.
type faulty struct {
	runstore.RunStore
	began time.Time

	mu       sync.Mutex
	renewals []time.Duration
	releases []runstore.ReleaseRequest
	acquires []runstore.AcquireRequest
	sentAt   []time.Duration // of the acquires

	// Each may replace the call; n counts from 1. next is the real store.
	acquire func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error)
	renew   func(ctx context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error)
	release func(ctx context.Context, n int, next func() (runstore.Committed, error)) (runstore.Committed, error)
}

func (f *faulty) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	f.mu.Lock()
	f.acquires = append(f.acquires, req)
	f.sentAt = append(f.sentAt, time.Since(f.began))
	n, hook := len(f.acquires), f.acquire
	f.mu.Unlock()
	next := func() (runstore.Granted, error) { return f.RunStore.AcquireLease(ctx, req) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

func (f *faulty) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	f.mu.Lock()
	f.renewals = append(f.renewals, time.Since(f.began))
	n, hook := len(f.renewals), f.renew
	f.mu.Unlock()
	next := func() (runstore.Renewed, error) { return f.RunStore.RenewLease(ctx, req) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

func (f *faulty) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	f.mu.Lock()
	f.releases = append(f.releases, req)
	n, hook := len(f.releases), f.release
	f.mu.Unlock()
	next := func() (runstore.Committed, error) { return f.RunStore.ReleaseLease(ctx, req) }
	if hook == nil {
		return next()
	}
	return hook(ctx, n, next)
}

// renewed returns when the renewals came in, since the start.
func (f *faulty) renewed() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Duration(nil), f.renewals...)
}

// hang waits for the context's end, as a store does whose engine is silent.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return &runstore.OpError{Op: "renew lease", Err: runstore.ErrUnknownOutcome, Cause: ctx.Err()}
}

func unavailable() error { return &runstore.OpError{Op: "renew lease", Err: runstore.ErrUnavailable} }

const run = runstore.RunID("run-1")

// fixture is a fresh store with one run.
type fixture struct {
	*faulty
	t      *testing.T
	shared *memory.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	shared := memory.New(nil)
	f := &fixture{t: t, shared: shared, faulty: &faulty{RunStore: shared.Open(), began: time.Now()}}
	if _, err := f.CreateRun(t.Context(), runstore.RunSpec{ID: run}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) keeper(opts *lease.Options) *lease.Keeper {
	f.t.Helper()
	k, err := lease.New(f.faulty, opts)
	if err != nil {
		f.t.Fatal(err)
	}
	return k
}

// grant acquires the lease directly.
func (f *fixture) grant(spec runstore.LeaseSpec) lease.Granted {
	f.t.Helper()
	sent := time.Now()
	l, err := f.RunStore.AcquireLease(f.t.Context(), runstore.AcquireRequest{Run: run, LeaseSpec: spec, Preempt: "test"})
	if err != nil {
		f.t.Fatal(err)
	}
	return lease.Granted{Lease: l.Lease, Sent: sent}
}

// head reads the run with a context that outlives the test's.
func (f *fixture) head() runstore.Run {
	f.t.Helper()
	r, err := f.GetRun(context.Background(), run)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) wantFree() {
	f.t.Helper()
	if h := f.head().Holder; h.Token != 0 {
		f.t.Errorf("the lease is held by %q under token %v, want it free", h.Owner, h.Token)
	}
}

var agent = runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent", TTL: 30 * time.Second}

func request() runstore.AcquireRequest {
	return runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent"}}
}

// wait is work that does nothing for d, or until its context ends.
func wait(d time.Duration) lease.Work {
	return func(ctx context.Context, _ *lease.Held) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// elapse lets virtual time pass: every test that calls it runs in a bubble.
func elapse(d time.Duration) { <-time.After(d) }
