package k8s_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tapestore/tapestore/lease/k8s"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func newLock(t *testing.T, store runstore.RunStore, identity string) *k8s.Lock {
	t.Helper()
	lock, err := k8s.New(store, "controller", identity)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// elector runs an elector until stop is called.
type elector struct {
	lock    *k8s.Lock
	stop    func()
	mu      sync.Mutex
	leading int // number of terms
	leads   bool
}

func startElector(t *testing.T, store runstore.RunStore, identity string) *elector {
	t.Helper()
	e := &elector{lock: newLock(t, store, identity)}
	ctx, cancel := context.WithCancel(t.Context())
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				e.set(true)
				<-ctx.Done()
			},
			OnStoppedLeading: func() { e.set(false) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { le.Run(ctx) })
	e.stop = func() { cancel(); running.Wait() }
	t.Cleanup(e.stop)
	return e
}

func (e *elector) set(leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leads = leads; leads {
		e.leading++
	}
}

func (e *elector) isLeading() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leads
}

// append commits an event under the fence that a lock had.
func appendUnder(ctx context.Context, store runstore.RunStore, fence runstore.Fence) error {
	b := runstore.NewBatch("controller", fence)
	b.Append("step", nil)
	_, err := store.Commit(ctx, b)
	return err
}

// The unchanged elector of client-go elects one leader, which has a token. A leader that stops
// releases the lease, and the next one has a higher token; the writes of the former are refused.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		all := []*elector{startElector(t, store, "a"), startElector(t, store, "b"), startElector(t, store, "c")}
		leader := func() *elector {
			var found *elector
			for _, e := range all {
				if e.isLeading() {
					if found != nil {
						t.Fatal("two leaders")
					}
					found = e
				}
			}
			if found == nil {
				t.Fatal("no leader")
			}
			return found
		}
		time.Sleep(time.Minute)
		first := leader()
		old, ok := first.lock.Fence()
		if token, _ := first.lock.FencingToken(); !ok || token != 1 {
			t.Errorf("token %v, %t; want 1", token, ok)
		}
		if err := appendUnder(t.Context(), store, old); err != nil {
			t.Error(err)
		}
		record, _, err := first.lock.Get(t.Context())
		if err != nil || record.HolderIdentity != first.lock.Identity() || record.LeaseDurationSeconds != 15 {
			t.Errorf("record %+v, %v; want that of the leader", record, err)
		}
		first.stop()
		time.Sleep(5 * time.Second) // the retry period and its jitter
		second := leader()
		if token, ok := second.lock.FencingToken(); !ok || token != 2 {
			t.Errorf("token %v, %t; want 2", token, ok)
		}
		if err := appendUnder(t.Context(), store, old); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("late write: %v, want ErrFenced", err)
		}
		if _, ok := first.lock.Fence(); ok {
			t.Error("the former leader still has a fence")
		}
		if record, _, err := second.lock.Get(t.Context()); err != nil || record.HolderIdentity != second.lock.Identity() || record.LeaderTransitions != 1 {
			t.Errorf("record %+v, %v; want that of the second leader after one transition", record, err)
		}
		if head, err := store.GetRun(t.Context(), "controller"); err != nil || head.Holder.Owner != runstore.Owner(second.lock.Identity()) || !head.Unlisted {
			t.Errorf("run %+v, %v; want the second leader as its holder", head, err)
		}
	})
}

// The store judges the expiry: a contender whose elector believes that the lease is over is refused.
func TestStoreJudgesExpiry(t *testing.T) {
	shared := memory.New(nil)
	store := shared.Open()
	a, b := newLock(t, store, "a"), newLock(t, store, "b")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if _, _, err := a.Get(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("get before the first election: %v, want not found", err)
	}
	if err := a.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	theirs := record
	theirs.HolderIdentity = "b"
	if err := b.Create(t.Context(), theirs); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second create: %v, want already exists", err)
	}
	if err := b.Update(t.Context(), theirs); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Errorf("update while the lease is held: %v, want ErrLeaseHeld", err)
	}
	shared.Advance(16 * time.Second)
	if err := a.Update(t.Context(), record); err != nil {
		t.Errorf("late renewal before a takeover: %v", err)
	}
	shared.Advance(16 * time.Second)
	if err := b.Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := a.Update(t.Context(), record); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("renewal after the takeover: %v, want ErrFenced", err)
	}
	if _, ok := a.Fence(); ok {
		t.Error("the former leader still has a fence")
	}
	if got, _, err := a.Get(t.Context()); err != nil || got.HolderIdentity != "b" {
		t.Errorf("record %+v, %v; want that of b: a refused update stores nothing", got, err)
	}
}

// lossy loses the replies of acquires and creations.
type lossy struct {
	runstore.RunStore
	lose bool
}

func (s *lossy) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	g, err := s.RunStore.AcquireLease(ctx, r)
	if err == nil && s.lose {
		return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: r.Run, Err: runstore.ErrUnknownOutcome}
	}
	return g, err
}

func (s *lossy) CreateRun(ctx context.Context, r runstore.RunSpec) (runstore.Created, error) {
	c, err := s.RunStore.CreateRun(ctx, r)
	if err == nil && s.lose {
		return runstore.Created{}, &runstore.OpError{Op: "create run", Run: r.ID, Err: runstore.ErrUnknownOutcome}
	}
	return c, err
}

// A contender whose reply was lost finds its own grant by the next attempt, without waiting for it
// to expire.
func TestLostReply(t *testing.T) {
	store := &lossy{RunStore: memory.New(nil).Open(), lose: true}
	lock := newLock(t, store, "a")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if err := lock.Create(t.Context(), record); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want the lost reply", err)
	}
	store.lose = false
	if err := lock.Update(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if token, ok := lock.FencingToken(); !ok || token != 1 {
		t.Errorf("token %v, %t; want 1, of the creation", token, ok)
	}
	if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}); err != nil { // ReleaseOnCancel
		t.Fatal(err)
	}
	store.lose = true
	if err := lock.Update(t.Context(), record); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want the lost reply", err)
	}
	store.lose = false
	if err := lock.Update(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if token, ok := lock.FencingToken(); !ok || token != 2 {
		t.Errorf("token %v, %t; want 2: one grant for both attempts", token, ok)
	}
}

// A run that exists without a record is a lock that nobody has held, and a record of something else
// is an error.
func TestForeignRecords(t *testing.T) {
	store := memory.New(nil).Open()
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "controller"}); err != nil {
		t.Fatal(err)
	}
	lock := newLock(t, store, "a")
	if record, raw, err := lock.Get(t.Context()); err != nil || record.HolderIdentity != "" || raw != nil {
		t.Errorf("got %+v, %q, %v; want an empty record", record, raw, err)
	}
	if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}); err != nil {
		t.Error(err)
	}
	b := runstore.NewBatch("controller", runstore.Unguarded("test"))
	b.Put(k8s.RecordKey, []byte("no JSON"))
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lock.Get(t.Context()); err == nil {
		t.Error("a record that is no JSON was accepted")
	}
	if _, err := k8s.New(store, "", ""); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}
