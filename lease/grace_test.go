package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// outage is a store that nobody reaches while it is down.
type outage struct {
	runstore.RunStore
	down atomic.Bool
}

func (o *outage) err() error {
	if o.down.Load() {
		return unavailable()
	}
	return nil
}

func (o *outage) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if err := o.err(); err != nil {
		return runstore.Run{}, err
	}
	return o.RunStore.GetRun(ctx, id)
}

func (o *outage) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return o.RunStore.ScanIndex(ctx, q)
}

func (o *outage) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	if err := o.err(); err != nil {
		return runstore.Granted{}, err
	}
	return o.RunStore.AcquireLease(ctx, req)
}

func (o *outage) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	if err := o.err(); err != nil {
		return runstore.Renewed{}, err
	}
	return o.RunStore.RenewLease(ctx, req)
}

func (o *outage) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	if err := o.err(); err != nil {
		return runstore.Committed{}, err
	}
	return o.RunStore.ReleaseLease(ctx, req)
}

// TestOutageOfTwoTTLs takes the store away for two TTLs while 200 leases are held and contenders of
// both kinds wait. No lease changes hands that its holder renews; those of dead holders do.
func TestOutageOfTwoTTLs(t *testing.T) {
	for seed := range 5 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, outageOfTwoTTLs) })
	}
}

func outageOfTwoTTLs(t *testing.T) {
	const leases, dead = 200, 10
	store := &outage{RunStore: memory.New(nil).Open()}
	opts := &lease.Options{Grace: 5 * time.Minute}
	keeper, err := lease.New(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var untrusted atomic.Int64
	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("run ", i)) }
	for i := range leases {
		created, err := store.CreateRun(t.Context(), runstore.RunSpec{
			ID: id(i), Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "holder", TTL: lease.DefaultTTL},
		})
		if err != nil {
			t.Fatal(err)
		}
		if i < dead {
			continue // its holder is dead
		}
		all.Go(func() {
			err := keeper.Hold(ctx, lease.Granted{Lease: created.Lease, Sent: time.Now()}, func(ctx context.Context, held *lease.Held) error {
				for pause(ctx, time.Second) {
					if _, ok := held.Trusted(); !ok {
						untrusted.Add(1)
					}
				}
				if _, ok := held.Trusted(); !ok {
					t.Errorf("the lease of %q is not trusted long after the outage", held.Lease().Run)
				}
				return context.Cause(ctx)
			})
			if errors.Is(err, lease.ErrLost) {
				t.Errorf("a holder ended with %v", err)
			}
		})
	}
	worker, err := takeover.New(store, "worker", &takeover.Options{MaxInFlight: leases, Lease: opts})
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() {
		_ = worker.Run(ctx, func(ctx context.Context, held *lease.Held, run runstore.Run) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	for i := range leases {
		if i%2 == 0 {
			all.Go(func() {
				req := runstore.AcquireRequest{Run: id(i), LeaseSpec: runstore.LeaseSpec{Owner: "contender"}}
				if granted, err := keeper.Acquire(ctx, req); err == nil {
					_ = keeper.Hold(ctx, granted, wait(time.Hour))
				}
			})
		}
	}
	elapse(5 * time.Second)
	store.down.Store(true)
	elapse(2 * lease.DefaultTTL)
	store.down.Store(false)
	elapse(5 * time.Minute)
	for i := range leases {
		run, err := store.GetRun(t.Context(), id(i))
		if err != nil {
			t.Fatal(err)
		}
		if want := i < dead; (run.Token > 1) != want || !run.Live(time.Now()) {
			t.Errorf("run %d is held by %q under token %v, live %v; want a successor only for a dead holder",
				i, run.Holder.Owner, run.Token, run.Live(time.Now()))
		}
	}
	if untrusted.Load() == 0 {
		t.Error("no holder noticed the outage")
	}
	stop()
	all.Wait()
}

// pause waits for d. It reports false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// A holder without a store ends at the end of its grace.
func TestGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			return runstore.Renewed{}, unavailable()
		}
		err := f.keeper(&lease.Options{Grace: time.Minute}).Do(t.Context(), request(), wait(time.Hour))
		if took := time.Since(f.began); !errors.Is(err, lease.ErrExpired) || took != 27*time.Second+time.Minute {
			t.Errorf("the work ended after %v with %v, want 1m27s and ErrExpired", took, err)
		}
	})
}

// A holder whose renewals the store refuses has no grace: a contender can reach the store,
// too. In the grace the first refusal ends the work.
func TestRefusalsHaveNoGrace(t *testing.T) {
	for name, c := range map[string]struct{ refused, ends time.Duration }{
		"from the beginning": {0, 27 * time.Second},
		"in the grace":       {40 * time.Second, 51 * time.Second}, // the latest time of a renewal
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					if time.Since(f.began) < c.refused {
						return runstore.Renewed{}, unavailable()
					}
					return runstore.Renewed{}, runstore.ErrInvalid
				}
				err := f.keeper(&lease.Options{Grace: time.Hour}).Do(t.Context(), request(), wait(2*time.Hour))
				var lost *lease.LostError
				if took := time.Since(f.began); !errors.Is(err, lease.ErrExpired) || took < max(c.refused, 27*time.Second) || took > c.ends {
					t.Errorf("the work ended after %v with %v, want ErrExpired after at most %v", took, err, c.ends)
				}
				if !errors.As(err, &lost) || !errors.Is(lost.Last, runstore.ErrInvalid) {
					t.Errorf("the error %v does not name the refusal", err)
				}
			})
		})
	}
}

// A holder that the store fences in its grace ends at once.
func TestGraceEndsWithATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			if time.Since(f.began) < 40*time.Second {
				return runstore.Renewed{}, unavailable()
			}
			return next()
		}
		go func() {
			elapse(35 * time.Second)
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute})
		}()
		err := f.keeper(&lease.Options{Grace: time.Hour}).Do(t.Context(), request(), wait(time.Hour))
		if took := time.Since(f.began); !errors.Is(err, runstore.ErrFenced) || took > 51*time.Second {
			t.Errorf("the work ended after %v with %v, want ErrFenced with the first renewal that is answered", took, err)
		}
	})
}

// After an outage a contender waits only for leases that somebody may renew.
func TestContenderAfterAnOutage(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(f *fixture)
		least   time.Duration
		most    time.Duration
	}{
		"free lease":         {func(f *fixture) {}, 60 * time.Second, 72 * time.Second},
		"own former process": {func(f *fixture) { f.grant(agent) }, 60 * time.Second, 72 * time.Second},
		"dead holder": {func(f *fixture) { f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second}) },
			90 * time.Second, 125 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				test.prepare(f)
				store := &outage{RunStore: f.shared.Open()}
				store.down.Store(true)
				keeper, err := lease.New(store, &lease.Options{Grace: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					elapse(time.Minute)
					store.down.Store(false)
				}()
				if _, err := keeper.Acquire(t.Context(), request()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(f.began); took < test.least || took > test.most {
					t.Errorf("acquired after %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
}

// silentCommits is a store that answers no commit.
type silentCommits struct{ runstore.RunStore }

func (s silentCommits) Commit(ctx context.Context, _ runstore.Batch) (runstore.Committed, error) {
	return runstore.Committed{}, hang(ctx)
}

// TestHandoffRequestThatHangs checks that a successor whose request has hung over an outage leaves the
// expired lease to its holder first: it has sent no request for the lease that would have failed meanwhile.
func TestHandoffRequestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second})
		keeper, err := lease.New(silentCommits{f.shared.Open()}, &lease.Options{Grace: time.Hour, RequestTimeout: 16 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keeper.RequestHandoff(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(f.began); took < 46*time.Second || took > 63*time.Second {
			t.Errorf("acquired after %v, want a TTL after the request that hung, 46s to 1m3s", took)
		}
	})
}

// A grace does not prolong a strict lease, which no renewal extends after its expiry.
func TestStrictLeaseHasNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		store := &outage{RunStore: f}
		keeper, err := lease.New(store, &lease.Options{Grace: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		req := request()
		req.Strict = true
		began := time.Now()
		err = keeper.Do(t.Context(), req, func(ctx context.Context, _ *lease.Held) error {
			store.down.Store(true)
			<-ctx.Done()
			return nil
		})
		if took := time.Since(began); !errors.Is(err, lease.ErrExpired) || took > lease.DefaultTTL+lease.DefaultReleaseTimeout {
			t.Errorf("got %v after %v, want ErrExpired before the expiry", err, took)
		}
	})
}

// frozen is a store behind a server that can be stopped: it performs the requests for leases that it
// gets meanwhile when it goes on, before all others.
type frozen struct {
	runstore.RunStore
	mu     sync.Mutex
	is     bool
	queued []func()
}

// stopped reports whether the server is stopped, and queues a request for later if so.
func (f *frozen) stopped(later func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.is && later != nil {
		f.queued = append(f.queued, later)
	}
	return f.is
}

func (f *frozen) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is = true
}

// thaw returns the number of requests for leases that were performed late.
func (f *frozen) thaw() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is = false
	for _, perform := range f.queued {
		perform()
	}
	return len(f.queued)
}

func (f *frozen) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	if f.stopped(func() { _, _ = f.RunStore.AcquireLease(context.Background(), req) }) {
		return runstore.Granted{}, hang(ctx)
	}
	return f.RunStore.AcquireLease(ctx, req)
}

func (f *frozen) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	if f.stopped(nil) {
		return runstore.Renewed{}, hang(ctx)
	}
	return f.RunStore.RenewLease(ctx, req)
}

func (f *frozen) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if f.stopped(nil) {
		<-ctx.Done()
		return runstore.Run{}, unavailable()
	}
	return f.RunStore.GetRun(ctx, id)
}

// A server that stops for longer than the TTL, and then performs what it got meanwhile, gives no lease
// away that its holder renews. The lease of a dead holder is taken over.
func TestFrozenServer(t *testing.T) {
	const leases = 50
	for name, request := range map[string]bool{"acquire": false, "request a handoff": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &frozen{RunStore: memory.New(nil).Open()}
				keeper, err := lease.New(server, &lease.Options{Grace: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var taken, lost atomic.Int32
				for i := range leases {
					id := runstore.RunID(fmt.Sprint("run ", i))
					spec := runstore.LeaseSpec{Owner: "holder", TTL: lease.DefaultTTL, Grant: runstore.NewGrantID()}
					made, err := server.CreateRun(ctx, runstore.RunSpec{ID: id, Lease: &spec})
					if err != nil {
						t.Fatal(err)
					}
					if i > 0 { // the holder of the first is dead
						all.Go(func() {
							if err := keeper.Hold(ctx, lease.Granted{Lease: made.Lease, Sent: time.Now()}, wait(time.Hour)); errors.Is(err, lease.ErrLost) {
								lost.Add(1)
							}
						})
					}
					acquire := keeper.Acquire
					if request {
						acquire = keeper.RequestHandoff
					}
					all.Go(func() {
						granted, err := acquire(ctx, runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "contender"}})
						if err == nil {
							taken.Add(1)
							_ = keeper.Hold(ctx, granted, wait(time.Hour))
						}
					})
				}
				elapse(5 * time.Second)
				server.freeze()
				elapse(45 * time.Second)
				late := server.thaw()
				elapse(2 * time.Minute)
				if taken.Load() != 1 || lost.Load() != 0 {
					t.Errorf("%d leases were taken over and %d holders lost theirs, want only that of the dead holder; %d requests were performed late",
						taken.Load(), lost.Load(), late)
				}
				stop()
				all.Wait()
			})
		})
	}
}

// A contender with a Grace takes a lease over right after its expiry on the store clock. If that clock
// runs at another pace, it is late by no more than a pause between two reads, however long it has waited.
func TestContenderReadsTheHead(t *testing.T) {
	for _, pace := range []float64{1, 0.99, 1.01} {
		t.Run(fmt.Sprint(pace), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				shared := memory.New(&memory.Options{Clock: func() time.Time {
					return began.Add(time.Duration(float64(time.Since(began)) * pace))
				}})
				f := &fixture{t: t, shared: shared, faulty: &faulty{RunStore: shared.Open(), began: began}}
				if _, err := f.CreateRun(t.Context(), runstore.RunSpec{ID: run}); err != nil {
					t.Fatal(err)
				}
				held := f.grant(agent)
				time.AfterFunc(0, func() {
					for range 400 { // for more than an hour
						elapse(10 * time.Second)
						if _, err := shared.Open().RenewLease(context.Background(), runstore.RenewRequest{Fence: held.Lease.Fence(), TTL: agent.TTL}); err != nil {
							t.Errorf("renewal: %v", err)
						}
					}
				})
				granted, err := f.keeper(&lease.Options{Grace: time.Minute}).Acquire(t.Context(), runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "agent-b"}})
				if err != nil {
					t.Fatal(err)
				}
				now, err := f.Now(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				expired := began.Add(time.Duration(float64(4000*time.Second) * pace)).Add(agent.TTL)
				most := time.Second
				if pace != 1 {
					most = lease.DefaultMaxBackoff
				}
				if late := now.Sub(expired); granted.Lease.Token != 2 || late < 0 || late > most {
					t.Errorf("granted token %v, %v after the expiry; want 2, soon after", granted.Lease.Token, late)
				}
				if n := len(f.acquires); n > 10 {
					t.Errorf("%d requests for the lease, want reads of the head while the lease is live", n)
				}
			})
		})
	}
}
