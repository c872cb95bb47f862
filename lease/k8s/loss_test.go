package k8s_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// grants is a store that calls granted for each grant.
type grants struct {
	runstore.RunStore
	granted func()
}

func (s *grants) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	g, err := s.RunStore.AcquireLease(ctx, r)
	if err == nil {
		s.granted()
	}
	return g, err
}

func (s *grants) CreateRun(ctx context.Context, r runstore.RunSpec) (runstore.Created, error) {
	c, err := s.RunStore.CreateRun(ctx, r)
	if err == nil && c.New {
		s.granted()
	}
	return c, err
}

// breakLease takes the lease away from its holder, as lease.Break does.
func breakLease(t *testing.T, store runstore.RunStore) {
	granted, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "controller", LeaseSpec: runstore.LeaseSpec{Owner: "operator", TTL: time.Minute}, Preempt: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	revoke := runstore.NewBatch("controller", runstore.AtToken(granted.Token))
	revoke.Release = true
	if _, err := store.Commit(t.Context(), revoke); err != nil {
		t.Fatal(err)
	}
}

// A leader whose lease was lost is granted it again only after its elector has ended the leadership: the
// work of the former leadership never gets the fence of a later one. Then it can lead again.
func TestLossEndsTheLeadership(t *testing.T) {
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15}
	for name, lose := range map[string]func(t *testing.T, shared *memory.Store){
		"the lease is broken": func(t *testing.T, shared *memory.Store) {
			breakLease(t, shared.Open())
		},
		"another contender led and has released the lease": func(t *testing.T, shared *memory.Store) {
			shared.Advance(16 * time.Second) // the leader is paused, and wakes before its elector notices
			other := newLock(t, shared.Open(), "b")
			if err := other.Update(t.Context(), record); err != nil {
				t.Error(err)
			}
			if err := other.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}); err != nil {
				t.Error(err)
			}
		},
		"the run is purged": func(t *testing.T, shared *memory.Store) {
			purge := runstore.NewBatch("controller", runstore.AtToken(1))
			purge.Purge = true
			if _, err := shared.Open().Commit(t.Context(), purge); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := memory.New(nil)
				var leading atomic.Bool
				store := &grants{RunStore: shared.Open(), granted: func() {
					if leading.Load() {
						t.Error("a grant within a leadership")
					}
				}}
				lock := newLock(t, store, "a")
				// lead runs an elector until its leadership has ended.
				lead := func(ctx context.Context, work func(ctx context.Context)) {
					var working chan struct{}
					elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
						Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
						Callbacks: leaderelection.LeaderCallbacks{
							OnStartedLeading: func(ctx context.Context) {
								leading.Store(true)
								working = make(chan struct{})
								work(ctx)
								close(working)
							},
							OnStoppedLeading: func() { leading.Store(false) },
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					elector.Run(ctx)
					<-working
				}
				lead(t.Context(), func(ctx context.Context) {
					time.Sleep(time.Minute)
					lose(t, shared)
					<-ctx.Done()
					if fence, ok := lock.Fence(); ok {
						t.Errorf("the leader that lost its lease has the fence of token %v", fence.Token())
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				lead(ctx, func(context.Context) {
					if token, ok := lock.FencingToken(); !ok || token < 2 {
						t.Errorf("token %v, %t; want that of another grant", token, ok)
					}
					time.Sleep(time.Minute)
					cancel()
				})
			})
		})
	}
}

// A contender that never led, because its grant had ended when the reply to its request came, requests the
// lease again.
func TestLossBeforeTheLeadership(t *testing.T) {
	shared := memory.New(nil)
	replies := &lossy{RunStore: shared.Open(), lose: true}
	renewals := &answering{RunStore: replies, err: runstore.ErrUnavailable}
	lock := newLock(t, renewals, "a")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if err := lock.Create(t.Context(), record); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want the lost reply", err)
	}
	replies.lose = false
	if err := lock.Update(t.Context(), record); !errors.Is(err, runstore.ErrUnavailable) {
		t.Fatalf("got %v, want the grant found and its renewal failed", err)
	}
	renewals.err = nil
	breakLease(t, shared.Open())
	if err := lock.Update(t.Context(), record); !errors.Is(err, runstore.ErrFenced) {
		t.Fatalf("got %v, want ErrFenced", err)
	}
	if err := lock.Update(t.Context(), record); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// inFlight is a store that calls during while a renewal is in flight.
type inFlight struct {
	runstore.RunStore
	during func()
}

func (s *inFlight) RenewLease(ctx context.Context, r runstore.RenewRequest) (runstore.Renewed, error) {
	s.during()
	return s.RunStore.RenewLease(ctx, r)
}

// Fence, FencingToken and RecordEvent do not wait for the store.
func TestFenceDuringARequest(t *testing.T) {
	store := &inFlight{RunStore: memory.New(nil).Open()}
	lock := newLock(t, store, "a")
	called := false
	store.during = func() {
		called = true
		if token, ok := lock.FencingToken(); !ok || token != 1 {
			t.Errorf("token %v, %t; want 1", token, ok)
		}
		lock.RecordEvent("test")
	}
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if err := lock.Update(t.Context(), record); err != nil || !called {
		t.Errorf("update: %v, renewed: %t", err, called)
	}
}
