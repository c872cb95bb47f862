package k8s_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A grant that an earlier attempt made is as old as that attempt. The attempt that finds it renews it, so
// that the leader does not begin with a lease that has expired.
func TestOldGrantIsRenewed(t *testing.T) {
	for name, create := range map[string]bool{"of a creation": true, "of an update": false} {
		t.Run(name, func(t *testing.T) {
			shared := memory.New(nil)
			store := &lossy{RunStore: shared.Open()}
			lock := newLock(t, store, "a")
			record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
			request := lock.Update
			if create {
				request = lock.Create
			} else if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "controller"}); err != nil {
				t.Fatal(err)
			}
			store.lose = true
			if err := request(t.Context(), record); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("got %v, want the lost reply", err)
			}
			store.lose = false
			shared.Advance(16 * time.Second)
			record.LeaderTransitions = 7 // the record of this attempt is stored
			if err := request(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			head, err := store.GetRun(t.Context(), "controller")
			if err != nil {
				t.Fatal(err)
			}
			now, err := store.Now(t.Context())
			if err != nil || head.Holder.Token != 1 || !head.Live(now) {
				t.Errorf("at %v, %v: run %+v; want a live lease of token 1", now, err, head)
			}
			if got, _, err := lock.Get(t.Context()); err != nil || got.LeaderTransitions != 7 {
				t.Errorf("record %+v, %v; want that of the second attempt", got, err)
			}
		})
	}
}

// A creation whose reply is lost uses up its grant id. After a purge of the run, a contender requests a grant
// under another id.
func TestPurgeAfterALostCreation(t *testing.T) {
	store := &lossy{RunStore: memory.New(nil).Open(), lose: true}
	lock := newLock(t, store, "a")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if err := lock.Create(t.Context(), record); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got %v, want the lost reply", err)
	}
	store.lose = false
	purge := runstore.NewBatch("controller", runstore.AtToken(1))
	purge.Purge = true
	if _, err := store.Commit(t.Context(), purge); err != nil {
		t.Fatal(err)
	}
	if err := lock.Create(t.Context(), record); !errors.Is(err, runstore.ErrFenced) {
		t.Fatalf("the repeat of the creation: got %v, want ErrFenced", err)
	}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
}

// answering is a store that answers renewals and releases with err, unless it is nil.
type answering struct {
	runstore.RunStore
	err error
}

func (s *answering) RenewLease(ctx context.Context, r runstore.RenewRequest) (runstore.Renewed, error) {
	if s.err != nil {
		return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: r.Fence.Run(), Err: s.err}
	}
	return s.RunStore.RenewLease(ctx, r)
}

func (s *answering) ReleaseLease(ctx context.Context, r runstore.ReleaseRequest) (runstore.Committed, error) {
	if s.err != nil {
		return runstore.Committed{}, &runstore.OpError{Op: "release lease", Run: r.Fence.Run(), Err: s.err}
	}
	return s.RunStore.ReleaseLease(ctx, r)
}

// A contender drops its fence after an answer that means the loss of the lease, and keeps it after any
// other. A release that did not reach the store can be repeated.
func TestFenceAfterAnError(t *testing.T) {
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	released := resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}
	for _, test := range []struct {
		name   string
		record resourcelock.LeaderElectionRecord
		err    error
		keeps  bool
	}{
		{"renewal", record, runstore.ErrFenced, false},
		{"renewal", record, runstore.ErrNotFound, false},
		{"renewal", record, runstore.ErrLeaseExpired, false},
		{"renewal", record, runstore.ErrStoreBehind, false},
		{"renewal", record, runstore.ErrUnavailable, true},
		{"renewal", record, runstore.ErrUnknownOutcome, true},
		{"release", released, runstore.ErrFenced, false},
		{"release", released, runstore.ErrNotFound, false},
		{"release", released, runstore.ErrUnavailable, true},
		{"release", released, runstore.ErrUnknownOutcome, true},
	} {
		t.Run(test.name+" "+test.err.Error(), func(t *testing.T) {
			store := &answering{RunStore: memory.New(nil).Open()}
			lock := newLock(t, store, "a")
			if err := lock.Create(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			store.err = test.err
			if err := lock.Update(t.Context(), test.record); !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			if _, ok := lock.Fence(); ok != test.keeps {
				t.Errorf("the contender has a fence: %t, want %t", ok, test.keeps)
			}
			store.err = nil
			if err := lock.Update(t.Context(), released); err != nil {
				t.Error(err)
			}
			head, err := store.GetRun(t.Context(), "controller")
			if free := head.Holder.Token == 0; err != nil || free != test.keeps {
				t.Errorf("run %+v, %v; the lease is free: %t, want %t", head, err, free, test.keeps)
			}
		})
	}
}
