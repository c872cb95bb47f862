package group_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/group"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// bound is within which time after a death every shard has an owner again.
const bound = ttl + 2*time.Second

// Three workers share 30 shards, 10 each. One is killed: within TTL + 2 s the others own its 10 shards,
// and keep their own.
func TestKilledWorker(t *testing.T) {
	const n = 30
	for _, wrap := range []func(runstore.RunStore) runstore.RunStore{
		func(s runstore.RunStore) runstore.RunStore { return s },
		func(s runstore.RunStore) runstore.RunStore { return mute{s} },
	} {
		for range 5 {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, wrap(memory.New(nil).Open()))
				var workers []*member
				for _, name := range []string{"a", "b", "c"} {
					workers = append(workers, l.worker(name, group.MemberSpec{Name: name}, n))
				}
				time.Sleep(20 * time.Second)
				before := l.owners(workers[0].group, n)
				for _, name := range []string{"a", "b", "c"} {
					if count(before, name) != 10 {
						t.Fatalf("owners %v, want 10 shards for each", before)
					}
				}
				changes := len(l.changes(workers[0].group))
				workers[1].set(func(c *conn) { c.cut = true })
				killed := time.Now()
				for slices.ContainsFunc(l.owners(workers[0].group, n), func(o string) bool { return o == "b" || o == "" }) {
					if time.Since(killed) > bound {
						t.Fatalf("owners %v after %v, want a or c", l.owners(workers[0].group, n), time.Since(killed))
					}
					time.Sleep(50 * time.Millisecond)
				}
				t.Logf("every shard had an owner again after the TTL of %v and %v", ttl, time.Since(killed)-ttl)
				after := l.owners(workers[0].group, n)
				for shard, owner := range after {
					if before[shard] != "b" && owner != before[shard] {
						t.Errorf("shard %d moved from %s to %s", shard, before[shard], owner)
					}
				}
				if count(after, "a") != 15 || count(after, "c") != 15 {
					t.Errorf("owners %v, want 15 shards for each", after)
				}
				if got := l.changes(workers[0].group); len(got) != changes+1 || got[changes].Moved != 10 || got[changes].Members != 2 || got[changes].Shards != n {
					t.Errorf("changes %+v, want a further one with 10 moves", got)
				}
				time.Sleep(2 * ttl)
				l.checkJournals(workers[0].group, n)
			})
		}
	}
}

// silentFor is a store that does not answer commits to one run.
type silentFor struct {
	runstore.RunStore
	run runstore.RunID
}

func (s silentFor) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if b.Run() != s.run {
		return s.RunStore.Commit(ctx, b)
	}
	<-ctx.Done()
	return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome, Cause: ctx.Err()}
}

// A member that restarts follows the assignment at once. Shards waits for its work also if ctx ends
// before the number of shards is recorded.
func TestShardsWaitsForWorkThatBeganBeforeItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		first := open(t, store, options())
		spec := group.MemberSpec{Name: "a"}
		var working atomic.Int64
		begun := make(chan struct{}, 10)
		join := func(ctx context.Context, g *group.Group, end context.CancelFunc) {
			err := g.Join(t.Context(), spec, func(_ context.Context, m *group.Membership) error {
				go func() { <-begun; end() }()
				err := m.Shards(ctx, 1, func(ctx context.Context, _ *lease.Held, _ int) error {
					working.Add(1)
					defer working.Add(-1)
					begun <- struct{}{}
					<-ctx.Done()
					time.Sleep(time.Second)
					return context.Cause(ctx)
				})
				if n := working.Load(); n != 0 || !errors.Is(err, context.Canceled) {
					t.Errorf("Shards returned %v while the work on %d shards runs", err, n)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		join(ctx, first, cancel)
		ctx, cancel = context.WithCancel(t.Context())
		join(ctx, open(t, silentFor{store, first.MemberRun("a")}, options()), cancel)
	})
}

// A member that joins gets its share from the others, whose work ends with ErrMoved before the
// newcomer's begins. One that leaves hands its shards over.
func TestJoinAndLeaveMoveShards(t *testing.T) {
	const n = 30
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, memory.New(nil).Open())
		a := l.worker("a", group.MemberSpec{Name: "a"}, n)
		b := l.worker("b", group.MemberSpec{Name: "b"}, n)
		time.Sleep(time.Minute)
		before := l.owners(a.group, n)
		l.mu.Lock()
		l.causes = nil // of shards that moved to the second member, if it came after the first had acquired them
		l.mu.Unlock()
		c := l.worker("c", group.MemberSpec{Name: "c"}, n)
		time.Sleep(2 * time.Second)
		after := l.owners(a.group, n)
		for shard, owner := range after {
			if owner != before[shard] && owner != "c" {
				t.Errorf("shard %d moved from %q to %q", shard, before[shard], owner)
			}
		}
		l.mu.Lock()
		causes := slices.Clone(l.causes)
		l.mu.Unlock()
		if count(after, "c") != 10 || len(causes) != 10 {
			t.Errorf("owners %v after %d ends, want 10 shards for c", after, len(causes))
		}
		for _, cause := range causes {
			if cause != group.ErrMoved {
				t.Errorf("the cause of an end is %v, want ErrMoved", cause)
			}
		}
		if a, err := a.group.Assignment(t.Context()); err != nil || a.Generation == 0 || !slices.Equal(a.Owners, after) {
			t.Errorf("assignment %+v, %v; want that of the owners", a, err)
		}
		c.leave(t)
		time.Sleep(2 * time.Second)
		after = l.owners(a.group, n)
		if count(after, "a") != 15 || count(after, "b") != 15 {
			t.Errorf("owners %v, want 15 for a and b", after)
		}
		a.leave(t)
		b.leave(t)
		if got := l.owners(a.group, n); count(got, "") != n {
			t.Errorf("owners %v, want none", got)
		}
		l.checkJournals(a.group, n)
	})
}

// A member that returns under its name within the hysteresis keeps its shards, and one that is added
// and gone within it moves none.
func TestHysteresisOfRestarts(t *testing.T) {
	const n = 12
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, memory.New(nil).Open())
		a := l.worker("a", group.MemberSpec{Name: "a"}, n)
		b := l.worker("b1", group.MemberSpec{Name: "b"}, n)
		time.Sleep(time.Minute)
		before, changes := l.owners(a.group, n), len(l.changes(a.group))
		b.leave(t)
		time.Sleep(500 * time.Millisecond)
		b = l.worker("b2", group.MemberSpec{Name: "b"}, n)
		time.Sleep(300 * time.Millisecond)
		after := l.owners(a.group, n)
		for shard, owner := range after {
			if want := map[string]string{"a": "a", "b1": "b2"}[before[shard]]; owner != want {
				t.Errorf("shard %d is owned by %q, want %q", shard, owner, want)
			}
		}
		c := l.worker("c", group.MemberSpec{Name: "c"}, n)
		time.Sleep(500 * time.Millisecond)
		c.leave(t)
		time.Sleep(time.Minute)
		if got := l.changes(a.group); len(got) != changes {
			t.Errorf("changes %+v, want no further one", got)
		}
		_ = b
	})
}

// A shard that has moved to another member begins there only after the former work has returned.
func TestSlowHandoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		returned := map[int]time.Time{}
		var mu sync.Mutex
		a := join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, shard int) error {
				<-ctx.Done()
				time.Sleep(3 * ttl) // cleans up, and keeps its lease meanwhile
				mu.Lock()
				defer mu.Unlock()
				returned[shard] = time.Now()
				return nil
			})
		})
		time.Sleep(time.Minute)
		began := map[int]time.Time{}
		join(t, store, group.MemberSpec{Name: "b"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, shard int) error {
				mu.Lock()
				began[shard] = time.Now()
				mu.Unlock()
				<-ctx.Done()
				return nil
			})
		})
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(began) != 2 {
			t.Errorf("b began %d shards, want 2", len(began))
		}
		for shard, at := range began {
			if end, ok := returned[shard]; !ok || at.Before(end) || at.Sub(end) > time.Second {
				t.Errorf("shard %d began at %v, want right after the end of the former work at %v", shard, at, end)
			}
		}
		_ = a
	})
}

// A shard that moves away and back while its work still ends is worked on again.
func TestMovedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		var mu sync.Mutex
		working, starts := 0, 0
		a := join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, _ int) error {
				mu.Lock()
				working, starts = working+1, starts+1
				mu.Unlock()
				<-ctx.Done()
				time.Sleep(10 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				working--
				return nil
			})
		})
		time.Sleep(10 * time.Second)
		b := join(t, store, group.MemberSpec{Name: "b"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, _ int) error {
				<-ctx.Done()
				return nil
			})
		})
		time.Sleep(3 * time.Second)
		b.leave(t)
		time.Sleep(20 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if working != 4 || starts != 6 {
			t.Errorf("a works on %d shards after %d starts, want 4 after 6", working, starts)
		}
		_ = a
	})
}

// A member that leaves hands over the shards whose work has returned while other work still ends.
func TestLeaveWithSlowWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, memory.New(nil).Open())
		slow := join(t, l.store, group.MemberSpec{Name: "slow"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 4, func(ctx context.Context, _ *lease.Held, shard int) error {
				<-ctx.Done()
				if shard == 0 {
					time.Sleep(time.Minute)
				}
				return nil
			})
		})
		time.Sleep(10 * time.Second)
		b := l.worker("b", group.MemberSpec{Name: "b"}, 4)
		time.Sleep(10 * time.Second)
		slow.stop()
		time.Sleep(2 * time.Second)
		if got := l.owners(b.group, 4); count(got, "b") < 3 {
			t.Errorf("owners %v 2 s after the member began to leave, want b for all but one", got)
		}
	})
}

// Work that fails is run again, with growing pauses, and other shards are not disturbed.
func TestWorkThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		var mu sync.Mutex
		runs := map[int]int{}
		join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, 2, func(ctx context.Context, held *lease.Held, shard int) error {
				mu.Lock()
				runs[shard]++
				mu.Unlock()
				if shard == 1 {
					return errors.New("a fault of the test")
				}
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if runs[0] != 1 || runs[1] < 15 || runs[1] > 60 {
			t.Errorf("runs %v in a minute, want 1 and 15 to 60", runs)
		}
	})
}

// A member that shares another number of shards is refused, and the group goes on. The number can be
// changed when no member shares it.
func TestOtherNumberOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, memory.New(nil).Open())
		a := l.worker("a", group.MemberSpec{Name: "a"}, 4)
		time.Sleep(10 * time.Second)
		b := l.worker("b", group.MemberSpec{Name: "b"}, 6)
		if err := b.result(t); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("join: %v, want ErrInvalid", err)
		}
		time.Sleep(time.Minute)
		if got := l.owners(a.group, 6); !slices.Equal(got, []string{"a", "a", "a", "a", "", ""}) {
			t.Errorf("owners %v, want a for four shards", got)
		}
		a.leave(t)
		c := l.worker("c", group.MemberSpec{Name: "c"}, 6)
		time.Sleep(10 * time.Second)
		if got := l.owners(c.group, 6); count(got, "c") != 6 {
			t.Errorf("owners %v, want c for six shards", got)
		}
		// Members that take no shards get none, and observe.
		d := join(t, l.store, group.MemberSpec{Name: "d"}, func(ctx context.Context, m *group.Membership) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		time.Sleep(10 * time.Second)
		if got := l.owners(d.group, 6); count(got, "c") != 6 {
			t.Errorf("owners %v, want c for six shards", got)
		}
	})
}

// Only one call of Shards may be active; a later one takes shards again.
func TestShardsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		m := join(t, store, group.MemberSpec{Name: "a"}, func(ctx context.Context, m *group.Membership) error {
			for range 2 {
				ctx, stop := context.WithTimeout(ctx, 5*time.Second)
				defer stop()
				worked := 0
				err := m.Shards(ctx, 1, func(ctx context.Context, held *lease.Held, shard int) error {
					worked++
					if err := m.Shards(ctx, 1, nil); err == nil || errors.Is(err, context.Cause(ctx)) {
						return fmt.Errorf("a second call of Shards: %w", err)
					}
					<-ctx.Done()
					return nil
				})
				if !errors.Is(err, context.DeadlineExceeded) || worked != 1 {
					return fmt.Errorf("%w after %d pieces of work", err, worked)
				}
			}
			return nil
		})
		if err := m.result(t); err != nil {
			t.Error(err)
		}
		if got := history(t, store, m.group, "a"); !slices.Equal(got, []string{"joined 1", "released 1"}) {
			t.Errorf("events %v", got)
		}
	})
}

// TestManyShards checks that a member which waits for the shards of a dead one requests each lease a few
// times only, and has no more than MaxInFlight requests in flight.
func TestManyShards(t *testing.T) {
	shards := effort.Choose(1000, group.MaxShards)
	if shards < group.MaxShards {
		t.Logf("reduced: %d of %d shards", shards, group.MaxShards)
	}
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		work := func(ctx context.Context, m *group.Membership) error {
			return m.Shards(ctx, shards, func(ctx context.Context, _ *lease.Held, _ int) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}
		a := join(t, store, group.MemberSpec{Name: "a"}, work)
		b := join(t, store, group.MemberSpec{Name: "b"}, work)
		time.Sleep(3 * ttl)
		a.set(func(c *conn) { c.cut = true })
		b.set(func(c *conn) { c.acquires = 0 })
		time.Sleep(bound)
		held := 0
		for shard := range shards {
			head, err := store.GetRun(t.Context(), b.group.ShardRun(shard))
			if err != nil {
				t.Fatal(err)
			}
			if now, _ := store.Now(t.Context()); head.Live(now) && head.Holder.Owner == "b" {
				held++
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		t.Logf("%d shards have an owner; %d requests for %d leases", held, b.acquires, shards/2)
		if held != shards || b.acquires > 5*shards/2 {
			t.Errorf("want all %d, and at most 5 requests for each that moved", shards)
		}
	})
}
