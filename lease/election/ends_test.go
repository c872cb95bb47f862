package election_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// hooked is a store that calls a function after each grant and before each release.
type hooked struct {
	runstore.RunStore
	granted, releasing func()
}

func (h hooked) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := h.RunStore.AcquireLease(ctx, r)
	if err == nil && h.granted != nil {
		h.granted()
	}
	return granted, err
}

func (h hooked) ReleaseLease(ctx context.Context, r runstore.ReleaseRequest) (runstore.Committed, error) {
	if h.releasing != nil {
		h.releasing()
	}
	return h.RunStore.ReleaseLease(ctx, r)
}

func coordinator(t *testing.T, store runstore.RunStore) *election.Coordinator {
	t.Helper()
	c, err := election.New(store, "scheduler", &election.Options{Replica: "replica", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A replica whose context ends while the store grants the lease revokes it.
func TestStopDuringTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		ctx, stop := context.WithCancel(t.Context())
		err := coordinator(t, hooked{RunStore: store, granted: stop}).Run(ctx, func(context.Context, *lease.Held) error {
			t.Error("the work ran")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v, want the context's cause", err)
		}
		if head, err := store.GetRun(t.Context(), "scheduler"); err != nil || head.Token != 1 || head.Holder.Token != 0 {
			t.Errorf("run %+v, %v; want a lease that was granted and has ended", head, err)
		}
		next, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "scheduler", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
		if err != nil || next.Former != runstore.EndRevoked {
			t.Errorf("the next replica reads %v, %v; want revoked", next.Former, err)
		}
	})
}

// Work that has returned is not repeated because the replica steps down during the release.
func TestStepDownAfterTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hooked{RunStore: memory.New(nil).Open()}
		var c *election.Coordinator
		store.releasing = func() { c.StepDown() }
		c = coordinator(t, store)
		terms, done := 0, errors.New("done")
		err := c.Run(t.Context(), func(context.Context, *lease.Held) error {
			if terms++; terms > 1 {
				t.Fatal("the work was repeated")
			}
			return done
		})
		if err != done {
			t.Errorf("run: %v, want the work's error", err)
		}
		if s := c.Status(); s.State != election.Stopped || s.Err != done {
			t.Errorf("status %+v, want stopped with the work's error", s)
		}
	})
}

// The loss of another lease, which the work held, is an error of the work and no loss of the term.
func TestLossOfAnotherLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := coordinator(t, memory.New(nil).Open())
		other := &lease.LostError{Run: "other", Token: 1, Reason: lease.ErrExpired}
		terms := 0
		err := c.Run(t.Context(), func(context.Context, *lease.Held) error {
			if terms++; terms > 1 {
				t.Fatal("the work was repeated")
			}
			return other
		})
		if err != error(other) {
			t.Errorf("run: %v, want the work's error", err)
		}
		if s := c.Status(); s.Lost != 0 {
			t.Errorf("status %+v, want no loss", s)
		}
	})
}

// The end of a term by a step down is no error, and leaves the last loss in the status.
func TestStepDownIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := start(t, memory.New(nil).Open(), 1, election.Options{})
		time.Sleep(time.Minute)
		if !all[0].StepDown() {
			t.Fatal("the replica has no term")
		}
		synctest.Wait()
		if s := all[0].Status(); s.State != election.Standby || s.Err != nil {
			t.Errorf("status %+v, want a standby without an error", s)
		}
	})
}

// A replica that requests the lease takes over within a second; the former active one is a standby,
// without a loss or an error, and does not request the lease back.
func TestHandoff(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(nil).Open()
				old := start(t, store, 2, election.Options{Handoff: mode})
				time.Sleep(time.Minute)
				was := old[active(t, old)]
				next := start(t, store, 1, election.Options{Handoff: mode, RequestHandoff: true})
				time.Sleep(time.Second)
				if s := next[0].Status(); s.State != election.Active || s.Token != 2 {
					t.Errorf("the successor's status is %+v, want active under token 2", s)
				}
				if s := was.Status(); s.State != election.Standby || s.Lost != 0 || s.Err != nil {
					t.Errorf("the former status is %+v, want a standby without an error", s)
				}
				run, err := store.GetRun(t.Context(), "scheduler")
				if err != nil || run.Holder.Former != runstore.EndHandedOff {
					t.Errorf("the former grant was %v, %v; want handed off", run.Holder.Former, err)
				}
				time.Sleep(time.Hour)
				if s := next[0].Status(); s.State != election.Active || s.Terms != 1 {
					t.Errorf("the successor's status is %+v after an hour, want its first term", s)
				}
			})
		})
	}
}

// Work that is done in the moment of a handoff is done, and Run returns its result. Work that ends with
// the refusal of its fence is not: the replica is a standby.
func TestWorkEndsDuringTheHandoff(t *testing.T) {
	failed, refused := errors.New("failed"), errors.New("refused")
	for _, result := range []error{nil, failed, refused} {
		synctest.Test(t, func(t *testing.T) {
			inner := memory.New(nil).Open()
			begun, handed := make(chan struct{}), make(chan struct{})
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var grants atomic.Int64
			store := hooked{RunStore: inner, granted: func() {
				if grants.Add(1) == 2 {
					close(handed)
					time.AfterFunc(2*time.Second, stop)
					time.Sleep(time.Second)
				}
			}}
			c, err := election.New(store, "scheduler", &election.Options{Replica: "old", Handoff: lease.Overlap, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				<-begun
				b := runstore.NewBatch("scheduler", runstore.Unguarded("test"))
				b.Put(lease.HandoffKey, []byte(`{"owner":"new","grant":"g","ttl":60000000000}`))
				if _, err := inner.Commit(ctx, b); err != nil {
					t.Error(err)
				}
			}()
			err = c.Run(ctx, func(ctx context.Context, held *lease.Held) error {
				close(begun)
				select {
				case <-handed:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				if result != refused {
					return result
				}
				b := runstore.NewBatch("scheduler", held.Fence())
				b.Append("late", nil)
				_, err := inner.Commit(ctx, b)
				return err
			})
			switch s := c.Status(); {
			case result == refused && (!errors.Is(err, context.Canceled) || s.Lost != 0 || s.Err != nil):
				t.Errorf("got %v, status %+v; want a standby until the context ends", err, s)
			case result != refused && err != result:
				t.Errorf("got %v, want %v", err, result)
			}
		})
	}
}
