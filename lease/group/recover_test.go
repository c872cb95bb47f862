package group_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// dying is the store of a process that dies after its first commits. It cannot commit over two runs at
// once.
type dying struct {
	runstore.RunStore
	left int
}

func (s *dying) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.left--; s.left < 0 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome}
	}
	return s.RunStore.Commit(ctx, b)
}

// A step over two runs that the former owner of a shard left is completed before the work starts.
func TestStepOfAFormerOwnerIsRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		shard := open(t, store, options()).ShardRun(0)
		made, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: shard, Lease: &runstore.LeaseSpec{Owner: "dead", TTL: ttl}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
			t.Fatal(err)
		}
		here, there := runstore.NewBatch(shard, made.Lease.Fence()), runstore.NewBatch("other", runstore.AtVersion("record", 0))
		here.Append("step", nil)
		there.Append("step", nil)
		if _, err := crossrun.Commit(t.Context(), &dying{store, 2}, here, there); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Fatalf("got %v, want that the step is cut short", err)
		}
		seen := make(chan int, 1)
		join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 1, func(ctx context.Context, _ *lease.Held, _ int) error {
				n := 0
				for _, id := range []runstore.RunID{shard, "other"} {
					events, err := store.ReadJournal(ctx, id, 1, 10)
					if err != nil {
						t.Error(err)
					}
					n += len(events)
				}
				seen <- n
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		if n := <-seen; n != 2 {
			t.Errorf("the work saw %d events of the step, want 2: one on each run", n)
		}
	})
}

// silent is a store that never answers the first request for the step in progress of a run.
type silent struct {
	runstore.RunStore
	run   runstore.RunID
	asked atomic.Bool
}

func (s *silent) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if id == s.run && !s.asked.Swap(true) {
		<-ctx.Done()
		return nil, &runstore.OpError{Op: "read records", Run: id, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// A request that the store never answers delays the work on a shard, and does not keep it from its
// work for ever. The work learns that the shard's work before it may be unfinished: the lease under which
// the recovery failed was not released.
func TestRecoveryThatIsNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &silent{RunStore: memory.New(nil).Open()}
		store.run = open(t, store, options()).ShardRun(0)
		if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: store.run, Lease: &runstore.LeaseSpec{Owner: "dead", TTL: ttl}}); err != nil {
			t.Fatal(err)
		}
		worked := make(chan runstore.GrantEnd, 1)
		join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 1, func(ctx context.Context, _ *lease.Held, _ int) error {
				run, err := store.GetRun(ctx, store.run)
				if err != nil {
					t.Error(err)
				}
				worked <- run.Holder.Former
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		select {
		case former := <-worked:
			if former != runstore.EndRevoked {
				t.Errorf("the work reads %v, want revoked: the dead owner's work is unfinished", former)
			}
		case <-time.After(5 * time.Minute):
			t.Error("the work has not started after five minutes")
		}
		if !store.asked.Load() {
			t.Error("the member did not ask for the step in progress")
		}
	})
}
