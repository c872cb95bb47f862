package group_test

import (
	"context"
	"fmt"
	"slices"
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

// lossy loses the first reply of each kind of write that a test chooses.
type lossy struct {
	runstore.RunStore
	mu   sync.Mutex
	lose map[string]int // how many replies are lost, by what the write does
}

// Unwrap gives access to the store's announcements.
func (s *lossy) Unwrap() runstore.RunStore { return s.RunStore }

// lost returns the error of a lost reply if one of a write that does what is to be lost.
func (s *lossy) lost(what string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.lose[what] == 0 {
		return err
	}
	s.lose[what]--
	return &runstore.OpError{Op: what, Err: runstore.ErrUnknownOutcome}
}

// kind returns the kind of the last event of the writes, or else the key of their record.
func kind(w runstore.Writes) string {
	switch {
	case len(w.Events) > 0:
		return w.Events[len(w.Events)-1].Kind
	case len(w.Records) > 0:
		return string(w.Records[0].Key)
	default:
		return ""
	}
}

func (s *lossy) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	r, err := s.RunStore.CreateRun(ctx, spec)
	return r, s.lost("create", err)
}

func (s *lossy) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	g, err := s.RunStore.AcquireLease(ctx, r)
	return g, s.lost("acquire "+kind(r.Writes), err)
}

func (s *lossy) ReleaseLease(ctx context.Context, r runstore.ReleaseRequest) (runstore.Committed, error) {
	c, err := s.RunStore.ReleaseLease(ctx, r)
	return c, s.lost("release "+kind(r.Writes), err)
}

func (s *lossy) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c, err := s.RunStore.Commit(ctx, b)
	return c, s.lost("commit "+kind(b.Writes), err)
}

// Every write of a group may lose its reply. Each has its effect once.
func TestLostReplies(t *testing.T) {
	for what, times := range map[string]int{
		"create": 2, "acquire group.joined": 2, "acquire ": 2, "release group.ended": 2, "release ": 2,
		"commit run": 2, "commit group.rebalanced": 2, "commit change": 2,
		"acquire group.ended": 1, // the record is gone, and nothing is repeated
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &lossy{RunStore: memory.New(nil).Open(), lose: map[string]int{what: times}}
				work := func(ctx context.Context, m *group.Membership) error {
					return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, _ int) error {
						<-ctx.Done()
						return context.Cause(ctx)
					})
				}
				a := join(t, store, group.MemberSpec{Name: "a"}, work)
				b := join(t, store, group.MemberSpec{Name: "b"}, work)
				c := join(t, store, group.MemberSpec{Name: "c"}, work)
				time.Sleep(time.Minute)
				changes := newLedger(t, store).changes(a.group)
				b.set(func(c *conn) { c.cut = true })
				time.Sleep(time.Minute)
				c.leave(t)
				time.Sleep(time.Minute)
				for name, want := range map[string][]string{
					"a": {"joined 1"}, "b": {"joined 1", "expired 1"}, "c": {"joined 1", "released 1"},
				} {
					if got := history(t, store, a.group, name); !slices.Equal(got, want) {
						t.Errorf("events of %s: %v, want %v", name, got, want)
					}
				}
				after := newLedger(t, store).changes(a.group)
				if len(changes) > 3 || len(after) != len(changes)+2 {
					t.Errorf("changes %+v, and then %+v; want at most one for each member that joined, and one for each that ended", changes, after)
				}
				for shard := range 4 {
					head, err := store.GetRun(t.Context(), a.group.ShardRun(shard))
					if now, _ := store.Now(t.Context()); err != nil || !head.Live(now) || head.Holder.Owner != "a" {
						t.Errorf("shard %d: %+v, %v; want that a holds it", shard, head.Holder, err)
					}
				}
				store.mu.Lock()
				defer store.mu.Unlock()
				if store.lose[what] != 0 {
					t.Errorf("%d replies were not lost: no such write", store.lose[what])
				}
			})
		})
	}
}

// A request for the lease of a member or a shard whose context ends while it is in flight is awaited:
// the lease that it got is released, and the membership ends with its event.
func TestEndDuringARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		c := &conn{RunStore: store, latency: 100 * time.Millisecond}
		m := joinThrough(t, c, group.MemberSpec{Name: "a"}, nil)
		for {
			if head, err := store.GetRun(t.Context(), m.group.MemberRun("a")); err == nil && head.Token == 1 {
				break // the grant's reply is under way
			}
			time.Sleep(time.Millisecond)
		}
		m.leave(t)
		if got := history(t, store, m.group, "a"); fmt.Sprint(got) != "[joined 1 released 1]" {
			t.Errorf("events %v", got)
		}
		if len(m.began) != 0 {
			t.Error("the work began after the end of the context")
		}
	})
}

// A panic of the work ends the membership by the revocation of the lease, and the others remove the record.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		join(t, store, group.MemberSpec{Name: "b"}, nil).membership(t)
		g := open(t, store, options())
		func() {
			defer func() {
				if recover() != "a fault of the test" {
					t.Error("the panic did not continue")
				}
			}()
			_ = g.Join(t.Context(), group.MemberSpec{Name: "a"}, func(context.Context, *group.Membership) error { panic("a fault of the test") })
		}()
		if got := names(t, g); !slices.Equal(got, []string{"b"}) {
			t.Errorf("members %v, want b", got)
		}
		time.Sleep(10 * time.Second)
		if got := history(t, store, g, "a"); fmt.Sprint(got) != "[joined 1 expired 1]" {
			t.Errorf("events %v", got)
		}
	})
}

// A store that is closed ends the membership with its error.
func TestClosedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.New(nil)
		handle := engine.Open()
		l := newLedger(t, engine.Open())
		m := joinThrough(t, &conn{RunStore: handle}, group.MemberSpec{Name: "a"}, l.shards("a", handle, 4))
		time.Sleep(10 * time.Second)
		if err := handle.Close(); err != nil {
			t.Fatal(err)
		}
		if err := m.result(t); !lost(err) || runstore.KindOf(err) != runstore.ErrClosed {
			t.Errorf("join: %v, want a lost membership and ErrClosed", err)
		}
	})
}

// reaping calls a function before a dead member is removed.
type reaping struct {
	runstore.RunStore
	before func()
}

func (s *reaping) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	if kind(r.Writes) == group.EventEnded {
		s.before()
	}
	return s.RunStore.AcquireLease(ctx, r)
}

// A member that releases its expired lease late, just before another one removes it, has ended once.
func TestLateRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		fence := a.membership(t).Fence()
		late := 0
		join(t, &reaping{store, func() {
			late++
			var w runstore.Writes
			w.Append(group.EventEnded, []byte(`{"group":"workers","member":"a","reason":"released","token":1}`))
			w.Delete(runstore.SummaryKey)
			if _, err := store.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: fence, Writes: w}); err != nil {
				t.Error(err)
			}
		}}, group.MemberSpec{Name: "b"}, nil).membership(t)
		a.set(func(c *conn) { c.cut = true })
		time.Sleep(time.Minute)
		if got := history(t, store, a.group, "a"); late != 1 || fmt.Sprint(got) != "[joined 1 released 1]" {
			t.Errorf("events %v after %d late releases, want one end", got, late)
		}
	})
}

// A member that renews its expired lease late, just before another one removes it, stays a member.
func TestLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		a := join(t, store, group.MemberSpec{Name: "a"}, nil)
		fence := a.membership(t).Fence()
		var attempts atomic.Int32
		join(t, &reaping{store, func() {
			if attempts.Add(1) > 1 {
				return
			}
			if _, err := store.RenewLease(t.Context(), runstore.RenewRequest{Fence: fence, TTL: time.Minute}); err != nil {
				t.Error(err)
			}
		}}, group.MemberSpec{Name: "b"}, nil).membership(t)
		a.set(func(c *conn) { c.cut = true })
		time.Sleep(30 * time.Second)
		if got := names(t, open(t, store, options())); attempts.Load() != 1 || !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("members %v after %d attempts at the removal, want a and b after one", got, attempts.Load())
		}
		time.Sleep(time.Minute)
		if got := history(t, store, a.group, "a"); attempts.Load() != 2 || fmt.Sprint(got) != "[joined 1 expired 1]" {
			t.Errorf("events %v after %d attempts at the removal, want the end after two", got, attempts.Load())
		}
	})
}
