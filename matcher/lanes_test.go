package matcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// slow is a store on which the commits to some runs take a while, in nanoseconds.
type slow struct {
	runstore.RunStore
	runs map[runstore.RunID]*atomic.Int64
}

func (s slow) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if d := s.runs[b.Run()]; d != nil {
		time.Sleep(time.Duration(d.Load()))
	}
	return s.RunStore.Commit(ctx, b)
}

// backlog is the number of entries that come while a shard is held elsewhere: more than one page of the feed.
const backlog = 1200

// apart is a reaction of four shards, of which 1 and 2 are held elsewhere: 1 since the first entry, and 2 since
// half of the entries.
type apart struct {
	*world
	reaction tape.Reaction
	ids      [4]runstore.RunID
	slow     [4]*atomic.Int64
	free     [4]func()            // releases the lease of a shard that is held elsewhere
	read     runstore.Position    // up to which last is known
	last     [4]runstore.Position // of each shard's entries
}

func (a *apart) enter(n int) {
	a.t.Helper()
	a.world.enter("a", n)
	for {
		page, err := a.tape.Store().ReadFeed(context.Background(), runstore.FeedQuery{After: a.read, Limit: runstore.MaxPage})
		if err != nil {
			a.t.Fatal(err)
		}
		for _, e := range page {
			a.read = e.Position
			if e.Kind == "run" {
				a.last[a.reaction.ShardOf(e.Run)] = e.Position
			}
		}
		if len(page) == 0 {
			return
		}
	}
}

// handled reports whether shards have handled their entries.
func (a *apart) handled(shards ...int) bool {
	a.t.Helper()
	for _, shard := range shards {
		if a.cursor(shard) < a.last[shard] {
			return false
		}
	}
	return true
}

func (a *apart) cursor(shard int) runstore.Position {
	a.t.Helper()
	c, err := a.tape.ShardCursor(context.Background(), a.ids[shard])
	if err != nil {
		a.t.Fatal(err)
	}
	return c.Position
}

// hold takes the lease of a shard for the test.
func (a *apart) hold(shard int) {
	a.t.Helper()
	granted, err := a.tape.Store().AcquireLease(context.Background(), runstore.AcquireRequest{
		Run: a.ids[shard], LeaseSpec: runstore.LeaseSpec{Owner: "test", Reactor: "test", TTL: runstore.MaxTTL}, Preempt: "for the test",
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.free[shard] = func() {
		if _, err := a.tape.Store().ReleaseLease(context.Background(), runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
			a.t.Fatal(err)
		}
	}
}

func startApart(t *testing.T) (*apart, *replica) {
	t.Helper()
	a := &apart{world: newWorld(t)}
	a.reaction = a.register(reaction("r", "a", 4))
	runs := map[runstore.RunID]*atomic.Int64{}
	for i := range a.ids {
		id, err := a.tape.OpenShard(t.Context(), a.reaction, int32(i))
		if err != nil {
			t.Fatal(err)
		}
		a.ids[i], a.slow[i] = id, &atomic.Int64{}
		runs[id] = a.slow[i]
	}
	m := a.startOn("one", slow{a.store.Open(), runs})
	a.awaitHeld(a.reaction, "one", 4)
	for i := 1; i <= 2; i++ {
		a.hold(i)
		a.enter(backlog)
		a.until("shards 0 and 3 have handled theirs", func() bool { return a.handled(0, 3) })
	}
	time.Sleep(ttl)
	return a, m
}

// While a shard catches up with a long backlog, slowly, the others are not held up.
func TestCatchingUpHoldsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, m := startApart(t)
		defer m.stop()
		a.slow[1].Store(int64(2 * time.Second))
		a.free[1]()
		for range 20 {
			a.enter(8)
			time.Sleep(time.Second)
			if !a.handled(0, 3) {
				t.Fatal("an entry of another shard has no task after a second")
			}
		}
		a.slow[1].Store(0)
		a.free[2]()
		a.until("all are handled", func() bool { return a.handled(0, 1, 2, 3) })
		a.expectOnce("r", a.runs)
	})
}

// A shard that joins one that is catching up, and is further behind, misses nothing, at whatever moment.
func TestFurtherBehind(t *testing.T) {
	t.Parallel()
	for after := range 4 {
		synctest.Test(t, func(t *testing.T) {
			a, m := startApart(t)
			defer m.stop()
			a.slow[2].Store(int64(4 * time.Second))
			before := a.cursor(2)
			a.free[2]()
			a.until("shard 2 goes on", func() bool { return a.cursor(2) > before })
			time.Sleep(time.Duration(after) * time.Second)
			a.free[1]() // it is taken within a quarter of a lease
			a.enter(100)
			a.until("all are handled", func() bool { return a.handled(0, 1, 2, 3) })
			a.expectOnce("r", a.runs)
		})
	}
}
