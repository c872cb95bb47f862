package group_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// While the store is away, a call of SetAttributes does not keep Shards from ending soon. The call ends
// with the membership, even if its context lasts longer.
func TestSetAttributesDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		set, stopped, ended := make(chan error, 1), time.Time{}, time.Time{}
		c := &conn{RunStore: store}
		m := joinThrough(t, c, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			shards, stop := context.WithCancel(ctx)
			defer stop()
			go func() {
				time.Sleep(time.Second) // the number of shards is recorded
				c.pause()
				go func() {
					long, cancel := context.WithTimeout(context.WithoutCancel(ctx), 24*time.Hour)
					defer cancel()
					set <- m.SetAttributes(long, []byte("new"))
				}()
				time.Sleep(time.Second) // and the store is being asked
				stopped = time.Now()
				stop()
			}()
			err := m.Shards(shards, 1, func(ctx context.Context, _ *lease.Held, _ int) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if ended = time.Now(); !errors.Is(err, context.Canceled) {
				t.Errorf("Shards: %v, want the context's cause", err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		err := m.result(t)
		if !lost(err) {
			t.Errorf("join: %v, want the loss of the membership", err)
		}
		// The release of the shard and the 1 s for the record.
		if took := ended.Sub(stopped); took > lease.DefaultReleaseTimeout+time.Second {
			t.Errorf("Shards took %v to end", took)
		}
		lostAt := time.Now()
		if err := <-set; runstore.OutcomeOf(err) == runstore.Applied || time.Since(lostAt) > ttl {
			t.Errorf("SetAttributes returned %v, %v after the loss of the membership", err, time.Since(lostAt))
		}
	})
}

// A member that has left is refused by the store.
func TestSetAttributesAfterTheMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := join(t, memory.New(nil).Open(), group.MemberSpec{Name: "a"}, nil)
		membership := m.membership(t)
		m.leave(t)
		if err := membership.SetAttributes(t.Context(), []byte("late")); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want ErrFenced", err)
		}
	})
}

// unanswered loses the replies to commits of one run while lose is set.
type unanswered struct {
	runstore.RunStore
	run  runstore.RunID
	lose bool
}

func (s *unanswered) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c, err := s.RunStore.Commit(ctx, b)
	if err == nil && s.lose && b.Run() == s.run {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome}
	}
	return c, err
}

// Attributes whose write has an unknown outcome are part of the next write, and attributes whose write was
// refused are not.
func TestNextWriteHasTheAttributesOfAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		s := &unanswered{RunStore: store, run: open(t, store, options()).MemberRun("a")}
		g := open(t, s, options())
		err := g.Join(t.Context(), group.MemberSpec{Name: "a", Attributes: []byte("old")}, func(ctx context.Context, m *group.Membership) error {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			s.lose = true
			if err := m.SetAttributes(attempt, []byte("new")); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("got %v, want an unknown outcome", err)
			}
			s.lose = false
			shards, stop := context.WithTimeout(ctx, time.Second)
			defer stop()
			if err := m.Shards(shards, 1, func(ctx context.Context, _ *lease.Held, _ int) error { <-ctx.Done(); return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			members, err := g.Members(ctx)
			if err != nil || len(members.Members) != 1 || string(members.Members[0].Attributes) != "new" {
				t.Errorf("members %+v, %v; want the new attributes", members.Members, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// refusing does not apply the commits of one run while down is set, keeps the last of them, and answers
// with err.
type refusing struct {
	runstore.RunStore
	run  runstore.RunID
	err  error
	mu   sync.Mutex // guards what follows
	down bool
	last runstore.Batch
}

func (s *refusing) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *refusing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.mu.Lock()
	down := s.down && b.Run() == s.run
	if down {
		s.last = b
	}
	s.mu.Unlock()
	if down {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: s.err}
	}
	return s.RunStore.Commit(ctx, b)
}

// withRefusing runs work as a member whose commits can be refused.
func withRefusing(t *testing.T, err error, work func(ctx context.Context, g *group.Group, m *group.Membership, s *refusing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		s := &refusing{RunStore: store, run: open(t, store, options()).MemberRun("a"), err: err}
		g := open(t, s, options())
		joined := g.Join(t.Context(), group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			work(ctx, g, m, s)
			return nil
		})
		if joined != nil {
			t.Error(joined)
		}
	})
}

// A copy of a write that arrives after a later write replaces nothing.
func TestLateWriteOfAttributes(t *testing.T) {
	withRefusing(t, runstore.ErrUnknownOutcome, func(ctx context.Context, g *group.Group, m *group.Membership, s *refusing) {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s.set(true)
		if err := m.SetAttributes(attempt, []byte("first")); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("got %v, want an unknown outcome", err)
		}
		s.set(false)
		if err := m.SetAttributes(ctx, []byte("second")); err != nil {
			t.Error(err)
		}
		if _, err := s.RunStore.Commit(ctx, s.last); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("the late copy: got %v, want a conflict", err)
		}
		members, err := g.Members(ctx)
		if err != nil || len(members.Members) != 1 || string(members.Members[0].Attributes) != "second" {
			t.Errorf("members %+v, %v; want the second attributes", members.Members, err)
		}
	})
}

// If the end of Shards cannot be recorded, it is once the store answers again: until then no other member
// would run the shards.
func TestEndOfShardsIsRecordedAfterAnOutage(t *testing.T) {
	withRefusing(t, runstore.ErrUnavailable, func(ctx context.Context, g *group.Group, m *group.Membership, s *refusing) {
		shards, stop := context.WithCancel(ctx)
		go func() {
			time.Sleep(time.Second) // the number of shards is recorded
			s.set(true)
			stop()
		}()
		if err := m.Shards(shards, 1, func(ctx context.Context, _ *lease.Held, _ int) error { <-ctx.Done(); return nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		shared := func() int {
			members, err := g.Members(ctx)
			if err != nil || len(members.Members) != 1 {
				t.Fatalf("members %+v, %v; want one", members.Members, err)
			}
			return members.Members[0].Shards
		}
		if n := shared(); n != 1 {
			t.Errorf("the record shows %d shards during the outage, want 1", n)
		}
		s.set(false)
		time.Sleep(ttl) // more than the interval of the retries
		if n := shared(); n != 0 {
			t.Errorf("the record shows %d shards, want none", n)
		}
	})
}

// lagging is a store whose scans end with an entry of a member that was current before.
type lagging struct{ runstore.RunStore }

func (s lagging) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	entries, err := s.RunStore.ScanIndex(ctx, q)
	if len(entries) > 0 {
		old := entries[0]
		old.Record.Version--
		old.Record.Value = []byte(`{"name":"a","attributes":"b2xk"}`)
		old.Cursor = entries[len(entries)-1].Cursor
		entries = append(entries, old)
	}
	return entries, err
}

// Of two entries of a member the newer one counts, whichever comes first.
func TestNewestEntryOfAMemberCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		m := join(t, store, group.MemberSpec{Name: "a", Attributes: []byte("new")}, nil)
		m.membership(t)
		members, err := open(t, lagging{store}, options()).Members(t.Context())
		if err != nil || len(members.Members) != 1 || string(members.Members[0].Attributes) != "new" {
			t.Errorf("members %+v, %v; want the newest entry", members.Members, err)
		}
		m.leave(t)
	})
}
