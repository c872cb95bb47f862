package matcher_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestABacklogOfOneShard checks that a shard with a backlog delays another one by at most a page of it,
// whichever of the two a new replica acquires first.
func TestABacklogOfOneShard(t *testing.T) {
	t.Parallel()
	const slow = 3 * time.Second  // a commit
	rounds := effort.Choose(1, 5) // the order is random
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r := w.register(reaction("r", "a", 2))
			w.enter("a", 2000)
			w.skip(r, 1)
			m := w.start("one", func(ctx context.Context, op string, do func(context.Context) error) error {
				if op == "commit" {
					time.Sleep(slow)
				}
				return do(ctx)
			})
			defer m.stop()
			time.Sleep(time.Second)
			for before := len(w.runs); len(w.runs) == before || r.ShardOf(w.runs[len(w.runs)-1]) != 1; {
				w.enter("a", 1)
			}
			began := time.Now()
			w.until("a task for the last entry", func() bool {
				return slices.ContainsFunc(w.tasks("r"), func(k tape.Task) bool { return k.SourceRun == w.runs[len(w.runs)-1] })
			})
			if took := time.Since(began); took > 4*slow {
				t.Errorf("the shard without a backlog has its task after %v", took)
			}
			w.until("a task for each entry", func() bool { return len(w.tasks("r")) == w.expected(r, 2000) })
		})
	}
}

// skip moves the cursor of a shard to the end of the feed. The shards are opened.
func (w *world) skip(r tape.Reaction, shard int32) {
	w.t.Helper()
	ctx := context.Background()
	check := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var id runstore.RunID
	for n := range r.Shards {
		run, err := w.tape.OpenShard(ctx, r, n)
		check(err)
		if n == shard {
			id = run
		}
	}
	held, err := w.tape.Store().AcquireLease(ctx, runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "skip", Reactor: "skip", TTL: time.Second, Grant: runstore.NewGrantID()},
	})
	check(err)
	at, err := w.tape.ShardCursor(ctx, id)
	check(err)
	last, err := w.tape.Store().ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	check(err)
	_, err = w.tape.Advance(ctx, held.Lease.Fence(), r, at, nil, last[0].Position)
	check(err)
	time.Sleep(2 * time.Second) // the lease ends
}

// expected returns the number of entries that shard 0 handles, and shard 1 behind the first n.
func (w *world) expected(r tape.Reaction, n int) (all int) {
	for i, run := range w.runs {
		if r.ShardOf(run) == 0 || i >= n {
			all++
		}
	}
	return all
}
