package election_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// repeating is a store whose first grant is ended by an operator before the store repeats the request,
// because the reply was lost.
type repeating struct {
	runstore.RunStore
	acquires int
}

func (s *repeating) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := s.RunStore.AcquireLease(ctx, r)
	if err != nil {
		return granted, err
	}
	if s.acquires++; s.acquires > 1 {
		return granted, nil
	}
	if _, err := lease.Break(ctx, s.RunStore, lease.BreakRequest{Run: r.Run, Token: granted.Token, Operator: "ada", Reason: "test", Quiet: true}); err != nil {
		return granted, err
	}
	return s.RunStore.AcquireLease(ctx, r)
}

// The grant of a replica is ended before the replica has learnt of it. The replica stays in the election.
func TestGrantThatEndsBeforeItsReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		var token runstore.Token
		err := coordinator(t, &repeating{RunStore: store}).Run(t.Context(), func(_ context.Context, held *lease.Held) error {
			token = held.Fence().Token()
			return nil
		})
		if err != nil || token != 3 {
			t.Errorf("run: %v after a term under token %v, want token 3", err, token)
		}
	})
}

// hanging is a store that does not answer its first creation of a run.
type hanging struct {
	runstore.RunStore
	creations int
}

func (s *hanging) CreateRun(ctx context.Context, r runstore.RunSpec) (runstore.Created, error) {
	if s.creations++; s.creations > 1 {
		return s.RunStore.CreateRun(ctx, r)
	}
	<-ctx.Done()
	return runstore.Created{}, &runstore.OpError{Op: "create run", Run: r.ID, Err: runstore.ErrUnknownOutcome, Cause: ctx.Err()}
}

// A creation of the run that is not answered is repeated within one TTL.
func TestCreationThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		store := &hanging{RunStore: memory.New(nil).Open()}
		err := coordinator(t, store).Run(t.Context(), func(context.Context, *lease.Held) error { return nil })
		if took := time.Since(began); err != nil || took > lease.DefaultTTL || store.creations != 2 {
			t.Errorf("run: %v after %v and %d creations, want the work's end within the TTL", err, took, store.creations)
		}
	})
}
