package group_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// setBack is a store whose clock can be set back.
type setBack struct {
	runstore.RunStore
	by atomic.Int64
}

func (s *setBack) Now(ctx context.Context) (time.Time, error) {
	now, err := s.RunStore.Now(ctx)
	return now.Add(-time.Duration(s.by.Load())), err
}

// Unwrap gives access to the store's announcements.
func (s *setBack) Unwrap() runstore.RunStore { return s.RunStore }

// The shards of a member that has left get a new owner within the hysteresis, also if the store clock, which was
// an hour ahead, is set back right after the member left.
func TestClockIsSetBackAfterAMemberLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New(nil)
		shared.Advance(time.Hour)
		store := &setBack{RunStore: shared.Open()}
		defer func() { _ = store.Close() }()
		var owned [2]atomic.Int64 // how many shards each member works on
		var all sync.WaitGroup
		join := func(ctx context.Context, name string, count *atomic.Int64) {
			g, err := group.New(store, "g", nil)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				_ = g.Join(ctx, group.MemberSpec{Name: name}, func(ctx context.Context, m *group.Membership) error {
					return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, _ int) error {
						count.Add(1)
						defer count.Add(-1)
						<-ctx.Done()
						return nil
					})
				})
			})
		}
		first, leave := context.WithCancel(t.Context())
		second, stop := context.WithCancel(t.Context())
		defer leave()
		join(first, "a", &owned[0])
		join(second, "b", &owned[1])
		time.Sleep(30 * time.Second)
		if a, b := owned[0].Load(), owned[1].Load(); a != 2 || b != 2 {
			t.Errorf("the members work on %d and %d shards, want 2 each", a, b)
		}
		leave()
		time.Sleep(300 * time.Millisecond) // the other member has seen it, and waits for the hysteresis
		store.by.Store(int64(time.Hour))
		time.Sleep(30 * time.Second)
		if n := owned[1].Load(); n != 4 {
			t.Errorf("30 s after the clock was set back the member that stayed works on %d shards, want 4", n)
		}
		stop()
		all.Wait()
	})
}
