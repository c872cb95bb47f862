package matcher_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// When a replica is killed, the others take its shards over within a lease and a half, and each some of them.
func TestTakeover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "a", 64))
		p := &process{}
		first := w.start("first", p.around)
		w.awaitHeld(r, "first", 64)
		second, third := w.start("second", nil), w.start("third", nil)
		time.Sleep(3 * ttl)
		if held := w.holders(r); held["first"] != 64 {
			t.Errorf("a live holder lost shards: %v", held)
		}
		p.meet()
		time.Sleep(ttl + ttl/2)
		held := w.holders(r)
		if held["second"]+held["third"] != 64 || held["second"] < 10 || held["third"] < 10 {
			t.Errorf("after the first was killed the shards are held by %v, want all, and 10 at least by each of the others", held)
		}
		for _, m := range []*replica{first, second, third} {
			m.stop()
		}
	})
}

// A replica renews the lease of each shard within Heartbeat.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.heartbeat = time.Second
		r := w.register(reaction("r", "a", 1))
		var renewals atomic.Int64
		m := w.start("one", func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "renew" {
				renewals.Add(1)
			}
			return do(ctx)
		})
		w.awaitHeld(r, "one", 1)
		before := renewals.Load()
		time.Sleep(ttl)
		if n := renewals.Load() - before; n < 9 {
			t.Errorf("%d renewals in %v, want at least 9", n, ttl)
		}
		m.stop()
	})
}

// Replicas that start one after the other, within the time that shards wait for them, share the shards.
func TestSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.listInterval = 20 * time.Millisecond // replicas see a new reaction at about the same time
		r := w.register(reaction("r", "a", 240))
		var all []*replica
		for _, name := range []string{"one", "two", "three"} {
			all = append(all, w.start(name, nil))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		held := w.holders(r)
		if held["one"]+held["two"]+held["three"] != 240 || min(held["one"], held["two"], held["three"]) < 25 {
			t.Errorf("240 shards are held by %v, want at least 25 by each of three", held)
		}
		// A replica that holds nothing is first at what is new.
		idle := w.start("idle", nil)
		time.Sleep(time.Second)
		late := w.register(reaction("late", "a", 8))
		time.Sleep(2 * time.Second)
		if held := w.holders(late); held["idle"] != 8 {
			t.Errorf("the shards of a new reaction are held by %v, want all by the replica that holds no others", held)
		}
		for _, m := range append(all, idle) {
			m.stop()
		}
	})
}

// A new definition and the end of a reaction are followed; a reaction that comes back goes on where it was.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "a", 2))
		m := w.start("one", nil)
		defer m.stop()
		w.enter("a", 3)
		w.await("r", 3)

		other := r
		other.Pattern = "/tape/run/running/b/**"
		w.register(other)
		time.Sleep(time.Second)
		w.enter("a", 1) // not any more
		w.enter("b", 1)
		w.await("r", 4)
		w.expectOnce("r", append(w.runs[:3:3], w.runs[4]))

		w.deregister("r")
		time.Sleep(time.Second)
		if held := w.holders(r); len(held) > 0 {
			t.Errorf("the shards of a reaction that ended are held by %v", held)
		}
		w.enter("b", 1)
		time.Sleep(time.Second)
		w.expectOnce("r", append(w.runs[:3:3], w.runs[4]))
		w.register(other)
		w.await("r", 5)
		w.expectOnce("r", append(w.runs[:3:3], w.runs[4:]...))

		m.Wake()
		for _, change := range []func(*tape.Reaction){
			func(r *tape.Reaction) { r.Predicate = "kind ==" },
			func(r *tape.Reaction) { r.Pattern = "/tape/**/b" },
			func(r *tape.Reaction) { r.Handler = tape.HandlerUnspecified },
			func(r *tape.Reaction) { r.Handler = 99 },
		} {
			nothing := other
			change(&nothing)
			w.register(nothing)
			time.Sleep(time.Second)
			w.enter("b", 1)
			time.Sleep(time.Second)
		}
		if n := len(w.tasks("r")); n != 5 {
			t.Errorf("definitions that match nothing have made %d tasks", n-5)
		}
		text := m.log.String() // the pattern is valid
		if n := strings.Count(text, `level=WARN msg="a reaction matches nothing"`); n != 3 || strings.Count(text, "level=WARN") != n {
			t.Errorf("the log has other warnings than three of definitions that match nothing:\n%s", text)
		}
	})
}

// A shard whose commits fail stalls alone, says so, and goes on where it was when they succeed again.
func TestStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "a", 4))
		var full atomic.Bool
		full.Store(true)
		stalled, err := w.tape.OpenShard(t.Context(), r, 1)
		if err != nil {
			t.Fatal(err)
		}
		m := w.startOn("one", refusing{w.store.Open(), stalled, &full})
		defer m.stop()
		perShard := func() (n [4]int) {
			for _, task := range w.tasks("r") {
				n[task.Shard]++
			}
			return n
		}
		var want [4]int
		enter := func(n int) {
			w.enter("a", n)
			for _, run := range w.runs[len(w.runs)-n:] {
				want[r.ShardOf(run)]++
			}
		}
		for range 6 {
			enter(20)
			others := want
			others[1] = 0
			w.until("all shards but one go on", func() bool { return perShard() == others })
			time.Sleep(ttl / 2)
		}
		if !strings.Contains(m.log.String(), "level=WARN") || !strings.Contains(m.log.String(), "shard=1") {
			t.Errorf("no warning of the shard that stalls:\n%s", m.log)
		}
		full.Store(false)
		w.until("the shard goes on", func() bool { return perShard() == want })
		w.expectOnce("r", w.runs)
		if !strings.Contains(m.log.String(), "a shard of a reaction resumes") {
			t.Errorf("no message of the shard that resumes:\n%s", m.log)
		}
	})
}

// A shard that stalled does not count as stalled once another replica drives it, and once it reads the feed
// again without a match.
func TestStallEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "a", 1))
		id, err := w.tape.OpenShard(t.Context(), r, 0)
		if err != nil {
			t.Fatal(err)
		}
		var full, unread atomic.Bool
		full.Store(true)
		m := w.startOn("one", unreadable{refusing{w.store.Open(), id, &full}, id, &unread})
		defer m.stop()
		stalls := func(n int) {
			t.Helper()
			w.until(fmt.Sprintf("%d shards stall", n), func() bool { return m.Status().Stalled == n })
		}
		w.enter("a", 1)
		stalls(1)
		held, err := w.tape.Store().AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "two", TTL: runstore.MaxTTL, Grant: runstore.NewGrantID()}, Preempt: "a test",
		})
		if err != nil {
			t.Fatal(err)
		}
		stalls(0)
		at, err := w.tape.ShardCursor(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		last, err := w.tape.Store().ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.tape.Advance(t.Context(), held.Fence(), r, at, nil, last[0].Position); err != nil {
			t.Fatal(err)
		}
		unread.Store(true)
		if _, err := w.tape.Store().ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: held.Fence()}); err != nil {
			t.Fatal(err)
		}
		stalls(1)
		unread.Store(false)
		w.enter("b", 1)
		stalls(0)
	})
}

// refusing is a store on which a run is full.
type refusing struct {
	runstore.RunStore
	run  runstore.RunID
	full *atomic.Bool
}

func (s refusing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if b.Run() == s.run && s.full.Load() {
		return runstore.Committed{}, &runstore.InputError{Kind: runstore.ErrTooLarge, Field: "records", Problem: "the run is full"}
	}
	return s.RunStore.Commit(ctx, b)
}

// What cannot be read is passed over, in the feed, and the list of reactions is read again.
func TestDamage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(reaction("r", "a", 1))
		w.register(reaction("s", "a", 1))
		w.enter("a", 3)
		damaged := w.runs[1]
		var down atomic.Bool
		m := w.startOn("one", damaging{w.store.Open(), damaged, &down})
		defer m.stop()
		want := append(w.runs[:1:1], w.runs[2])
		w.await("r", 2)
		w.await("s", 2)
		w.expectOnce("r", want)
		if n := strings.Count(m.log.String(), "damaged event"); n != 1 {
			t.Errorf("the log names the damaged event %d times, want once:\n%s", n, m.log)
		}
		down.Store(true)
		time.Sleep(time.Second)
		w.enter("a", 1)
		w.await("r", 3) // of a reaction that is known
		down.Store(false)
		w.register(reaction("new", "a", 1))
		w.await("new", 3)
		if log := m.log.String(); strings.Count(log, "cannot list the reactions") != 1 || !strings.Contains(log, "lists the reactions again") {
			t.Errorf("the log does not name the failure and its end, once each:\n%s", log)
		}
	})
}

// damaging is a store with a damaged run, whose indexes may be down.
type damaging struct {
	runstore.RunStore
	run  runstore.RunID
	down *atomic.Bool
}

func (s damaging) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	events, err := s.RunStore.ReadFeed(ctx, q)
	for i, e := range events {
		if e.Run == s.run {
			events[i] = runstore.FeedEvent{Run: e.Run, Event: runstore.Event{Seq: e.Seq, Position: e.Position}, Err: runstore.ErrCorrupt}
		}
	}
	return events, err
}

func (s damaging) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if s.down.Load() {
		return nil, &runstore.OpError{Op: "scan", Err: runstore.ErrUnavailable}
	}
	return s.RunStore.ScanIndex(ctx, q)
}

// TestBareCursors checks that a shard without matches makes no commit while the feed is idle, and few
// otherwise.
func TestBareCursors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "none", 1))
		var commits atomic.Int64
		m := w.start("one", func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "commit" {
				commits.Add(1)
			}
			return do(ctx)
		})
		defer m.stop()
		w.awaitHeld(r, "one", 1)
		before := commits.Load()     // those that opened the shard
		const long = 5 * time.Minute // ten times the pace of such commits
		time.Sleep(long)
		w.enter("a", 4000)
		time.Sleep(long)
		if n := commits.Load() - before; n != 0 {
			t.Errorf("4,000 events without a match made %d commits", n)
		}
		w.enter("a", 1000)
		time.Sleep(time.Second)
		w.enter("a", 5000)
		time.Sleep(time.Second)
		if n := commits.Load() - before; n != 1 {
			t.Errorf("5,000 events without a match, and 5,000 more within 30 s, made %d commits, want 1", n)
		}
		time.Sleep(time.Minute)
		w.enter("a", 1)
		time.Sleep(time.Second)
		if n := commits.Load() - before; n != 2 {
			t.Errorf("a minute later an event made %d commits, want the second", n)
		}
	})
}

// unreadable is a store on which the records of a run cannot be read.
type unreadable struct {
	runstore.RunStore
	run    runstore.RunID
	unread *atomic.Bool
}

func (s unreadable) ReadRecords(ctx context.Context, run runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if run == s.run && s.unread.Load() {
		return nil, &runstore.OpError{Op: "read records", Run: run, Err: runstore.ErrCorrupt}
	}
	return s.RunStore.ReadRecords(ctx, run, q)
}
