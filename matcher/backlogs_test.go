package matcher_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// A shard that cannot continue, far behind, does not make the reader of the shards behind go through its backlog
// again at each attempt: the others would never catch up.
func TestAStalledShardFarBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pages = 100 // 50 s to read, and the stalled shard is retried every 15 to 30 s
		b := newBacklogs(t, 100, pages)
		m := b.start(&slowFeed{full: b.shardRun(0), takes: 500 * time.Millisecond})
		defer m.stop()
		b.awaitMissed(5 * time.Minute)
	})
}

// Of two shards behind the end, the one with few entries does not wait for the backlog of the other.
func TestABacklogOfAnotherShardBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 900 * time.Millisecond // a commit: below maxStep, so that the shard stays in the lane
		b := newBacklogs(t, 6000, 0)
		m := b.start(&slowFeed{takes: time.Millisecond, commit: slow})
		defer m.stop()
		b.awaitMissed(10 * slow)
		b.awaitBacklog()
	})
}

// Where the events after the foremost shard behind were purged, a shard further behind does not wait for the next
// event of the feed.
func TestAPurgeBehindTheForemost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklogs(t, 3000, 0)
		for _, run := range []runstore.RunID{b.missed, "noise"} {
			purge := runstore.NewBatch(run, runstore.Unguarded("test"))
			purge.Purge = true
			if _, err := b.tape.Store().Commit(t.Context(), purge); err != nil {
				t.Fatal(err)
			}
		}
		m := b.start(&slowFeed{takes: time.Millisecond, commit: 900 * time.Millisecond})
		defer m.stop()
		b.awaitBacklog()
	})
}

// backlogs are three shards at different positions: shard 0 has handled nothing, shard 1 all but its last entry,
// shard 2 all.
type backlogs struct {
	*world
	reaction tape.Reaction
	missed   runstore.RunID // the run of the last entry of shard 1
}

// newBacklogs enters entries, and pages of events that match nothing, before the last entry of shard 1, and five
// such pages after it.
func newBacklogs(t *testing.T, entries, pages int) *backlogs {
	b := &backlogs{world: newWorld(t)}
	b.reaction = b.register(reaction("r", "a", 3))
	b.enter("a", entries)
	b.noise(pages)
	b.skip(b.reaction, 1)
	for b.missed == "" || b.reaction.ShardOf(b.missed) != 1 {
		b.enter("a", 1)
		b.missed = b.runs[len(b.runs)-1]
	}
	b.noise(5)
	b.skip(b.reaction, 2)
	return b
}

// start starts a replica. It gets the lease of the foremost shard first, so the others join the lane behind.
func (b *backlogs) start(s *slowFeed) *replica {
	s.RunStore = b.store.Open()
	s.order = []runstore.RunID{b.shardRun(2), b.shardRun(0), b.shardRun(1)}
	return b.startOn("one", s)
}

func (b *backlogs) tasks() []tape.Task {
	b.t.Helper()
	tasks, err := b.tape.ListTasks(context.Background(), "r", tape.TaskUnspecified, 100_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return tasks
}

// awaitMissed waits until the last entry of shard 1 has its task.
func (b *backlogs) awaitMissed(limit time.Duration) {
	b.t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		switch {
		case slices.ContainsFunc(b.tasks(), func(k tape.Task) bool { return k.SourceRun == b.missed }):
			return
		case time.Since(began) > limit:
			b.t.Errorf("a shard that is one entry behind has no task for it after %v", limit)
			return
		}
	}
}

// awaitBacklog waits until each entry of shard 0 has its task.
func (b *backlogs) awaitBacklog() {
	b.t.Helper()
	want := 0
	for _, run := range b.runs {
		if b.reaction.ShardOf(run) == 0 {
			want++
		}
	}
	b.until("a task for each entry of the backlog", func() bool {
		time.Sleep(5 * time.Second) // of simulated time: each look reads all tasks
		got := 0
		for _, k := range b.tasks() {
			if b.reaction.ShardOf(k.SourceRun) == 0 {
				got++
			}
		}
		return got == want
	})
}

func (b *backlogs) shardRun(shard int32) runstore.RunID {
	b.t.Helper()
	id, err := b.tape.OpenShard(context.Background(), b.reaction, shard)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

// noise appends pages of events that no reaction matches.
func (w *world) noise(pages int) {
	w.t.Helper()
	ctx := context.Background()
	if _, err := w.tape.Store().CreateRun(ctx, runstore.RunSpec{ID: "noise"}); err != nil {
		w.t.Fatal(err)
	}
	for range pages * runstore.MaxPage / 100 {
		b := runstore.NewBatch("noise", runstore.Unguarded("noise"))
		for range 100 {
			b.Append("noise", []byte("{}"))
		}
		if _, err := w.tape.Store().Commit(ctx, b); err != nil {
			w.t.Fatal(err)
		}
	}
}

// slowFeed is a store with a slow feed and slow commits that refuses the commits of one run.
type slowFeed struct {
	runstore.RunStore
	full          runstore.RunID
	order         []runstore.RunID // in which the leases are granted
	takes, commit time.Duration
}

func (s *slowFeed) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	select {
	case <-time.After(s.takes):
		return s.RunStore.ReadFeed(ctx, q)
	case <-ctx.Done():
		return nil, &runstore.OpError{Op: "read feed", Err: runstore.ErrUnavailable, Cause: ctx.Err()}
	}
}

func (s *slowFeed) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	time.Sleep(time.Duration(slices.Index(s.order, req.Run)) * 300 * time.Millisecond)
	return s.RunStore.AcquireLease(ctx, req)
}

func (s *slowFeed) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	time.Sleep(s.commit)
	if b.Run() == s.full && len(b.Records) > 0 {
		return runstore.Committed{}, &runstore.InputError{Kind: runstore.ErrTooLarge, Field: "records", Problem: "full"}
	}
	return s.RunStore.Commit(ctx, b)
}
