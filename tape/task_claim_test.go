package tape_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestClaimsOfShards(t *testing.T) {
	t.Parallel()
	tp, store, _ := newTape(t)
	r := registerReaction(t, tp, tape.Reaction{ID: "r", Shards: 4, Handler: tape.HandlerTask})
	for n := range r.Shards {
		id, err := tp.OpenShard(t.Context(), r, n)
		if err != nil {
			t.Fatal(err)
		}
		var all []tape.Entry
		for p := runstore.Position(1); len(all) < 2; p++ {
			if e := (tape.Entry{Run: runstore.RunID(fmt.Sprint(p)), Position: p}); r.ShardOf(e.Run) == n {
				all = append(all, e)
			}
		}
		c, _ := tp.ShardCursor(t.Context(), id)
		if _, err := tp.Advance(t.Context(), leaseOf(t, store, id), r, c, all, all[1].Position); err != nil {
			t.Fatal(err)
		}
	}
	if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: 2, Owner: "a"}); len(got) != 2 || got[0].Shard != 2 || got[1].Shard != 2 {
		t.Errorf("claimed of shard 2: %+v", got)
	}
	if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: -7, Owner: "a"}); len(got) != 6 {
		t.Errorf("claimed of all others: %+v", got)
	}
	for _, reaction := range []string{"r", "none", ""} {
		if got := claimTasks(t, tp, tape.TaskClaim{Reaction: reaction, Shard: -1, Owner: "a"}); len(got) != 0 {
			t.Errorf("claimed of %q: %+v", reaction, got)
		}
	}
	listed, err := tp.ListTasks(t.Context(), "r", 0, 0)
	if err != nil || len(listed) != 8 {
		t.Errorf("listed %d, %v", len(listed), err)
	}
	for i := range listed[1:] {
		if listed[i].CreatedAt.Before(listed[i+1].CreatedAt) {
			t.Errorf("task %d is older than the one behind it", i)
		}
	}
}

// The time of a request takes the place of the store clock.
func TestClaimsAtATime(t *testing.T) {
	t.Parallel()
	tp, store, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	s.advance(2, matches(1, 2)...)
	now, _ := store.Now(t.Context())
	at := func(d time.Duration) time.Time { return now.Truncate(time.Millisecond).Add(d) }
	got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a", Now: at(-time.Hour), Lease: 2 * time.Hour, Max: 1})
	if sources(got) != "1" || !got[0].LeaseExpires.Equal(at(time.Hour)) {
		t.Fatalf("claimed an hour ago: %+v", got)
	}
	if listed, _ := tp.ListTasks(t.Context(), "r", tape.TaskClaimed, 0); len(listed) != 1 || listed[0] != got[0] {
		t.Errorf("listed %+v, want %+v", listed, got)
	}
	claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a", Now: at(-time.Hour), Lease: 3 * time.Hour})
	if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "b", Now: at(time.Hour)}); len(got) != 0 {
		t.Errorf("claimed %q, and the lease is over behind the millisecond of its end", sources(got))
	}
	for d, want := range []string{"1", "2"} {
		got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "b", Now: at(time.Duration(d+1)*time.Hour + time.Millisecond), Lease: 24 * time.Hour})
		if sources(got) != want {
			t.Errorf("claimed %q, want %q", sources(got), want)
		}
	}
}

func TestClaimOrderAndLimits(t *testing.T) {
	t.Parallel()
	tp, _, clock := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", RetryBackoffMS: 1000})
	s.advance(3, matches(1, 2, 3)...)
	for _, k := range claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a", Max: 2}) {
		if _, err := tp.NackTask(t.Context(), k.ID, "a", "", false); err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Millisecond)
	}
	clock.Advance(time.Second)
	s.advance(5, matches(4, 5)...)
	if got := sources(claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})); got != "3 4 5 1 2" {
		t.Errorf("claimed %s, want new ones before those that failed", got)
	}
	var many []runstore.Position
	for p := range 295 {
		many = append(many, runstore.Position(p+10))
	}
	for s.at.Position < 304 {
		s.advance(304, matches(many...)...)
	}
	first := 10
	for _, c := range []struct{ max, want int }{{0, 16}, {-1, 16}, {7, 7}, {1 << 30, tape.MaxTaskClaim}} {
		got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a", Max: c.max})
		if len(got) != c.want {
			t.Errorf("a claim of %d gets %d, want %d", c.max, len(got), c.want)
		}
		for i, k := range got {
			if k.Source != runstore.Position(first+i) {
				t.Fatalf("a claim of %d has %d at %d, want %d", c.max, k.Source, i, first+i)
			}
		}
		first += c.want
	}
	x := strings.Repeat("x", 2000)
	for _, c := range []struct {
		req   tape.TaskClaim
		kind  error
		field string
	}{
		{tape.TaskClaim{Owner: "a", Reaction: x}, runstore.ErrTooLarge, "reaction_id"},
		{tape.TaskClaim{Owner: x}, runstore.ErrTooLarge, "owner"},
		{tape.TaskClaim{Owner: "\xff"}, runstore.ErrInvalid, "owner"},
		{tape.TaskClaim{Owner: "a", Lease: 25 * time.Hour}, runstore.ErrInvalid, "lease_ms"},
		{tape.TaskClaim{Owner: "a", Now: runstore.EndOfTime}, runstore.ErrInvalid, "now_ms"},
	} {
		_, err := tp.ClaimTasks(t.Context(), c.req)
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Kind != c.kind || limit.Field != c.field {
			t.Errorf("ClaimTasks = %v, want %v naming %s", err, c.kind, c.field)
		}
	}
	if _, err := tp.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r"}); !errors.Is(err, tape.ErrRefused) || err.Error() != "claim_tasks: owner is required" {
		t.Errorf("ClaimTasks without an owner = %v", err)
	}
}

// Another server claims the same tasks between the look and the commit.
func TestClaimsThatMeet(t *testing.T) {
	t.Parallel()
	inner, store, _ := newTape(t)
	s := openShard(t, inner, tape.Reaction{ID: "r"})
	s.advance(5, matches(1, 2, 3, 4, 5)...)
	var first []tape.Task
	tp := tape.New(ahead(store, "commit", 1, func() {
		first = claimTasks(t, inner, tape.TaskClaim{Reaction: "r", Owner: "a", Max: 2})
	}), nil)
	second := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "b", Max: 3})
	if sources(first) != "1 2" || sources(second) != "3 4 5" {
		t.Errorf("claimed %s and %s", sources(first), sources(second))
	}
	always := tape.New(hook(store, func(op string) error {
		if op == "commit" {
			return &runstore.ConflictError{Guard: "version"}
		}
		return nil
	}, nil), nil)
	s.advance(6, matches(6)...)
	if got, err := always.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r", Owner: "b"}); err != nil || len(got) != 0 {
		t.Errorf("a claim that always loses: %v, %v", got, err)
	}
	down := tape.New(hook(store, nil, func(op string) error {
		if op == "commit" {
			return errReplyLost
		}
		return nil
	}), nil)
	if _, err := down.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r", Owner: "b"}); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("a claim of unknown outcome: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inner.ClaimTasks(ctx, tape.TaskClaim{Reaction: "r", Owner: "b"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a claim whose caller has gone: %v", err)
	}
}

// TestClaimersShareTheWork lets 64 workers on two servers work off the tasks of one reaction. Each task
// is claimed once, and those of one server waste no commits.
func TestClaimersShareTheWork(t *testing.T) {
	t.Parallel()
	const n = 640
	for _, servers := range []int{1, 2} {
		inner, store, _ := newTape(t)
		s := openShard(t, inner, tape.Reaction{ID: "r"})
		var all []runstore.Position
		for p := range n {
			all = append(all, runstore.Position(p+1))
		}
		for s.at.Position < n {
			s.advance(n, matches(all...)...)
		}
		var mu sync.Mutex
		commits, claimed := 0, map[runstore.Position]int{}
		counted := hook(store, func(op string) error {
			mu.Lock()
			defer mu.Unlock()
			if op == "commit" {
				commits++
			}
			return nil
		}, nil)
		var tapes []*tape.Tape
		for range servers {
			tapes = append(tapes, tape.New(counted, nil))
		}
		var wg sync.WaitGroup
		for w := range 64 {
			tp := tapes[w%servers]
			wg.Go(func() {
				for {
					got, err := tp.ClaimTasks(t.Context(), tape.TaskClaim{Reaction: "r", Shard: -1, Owner: fmt.Sprint(w), Max: 1})
					if err != nil {
						t.Error(err)
						return
					}
					if len(got) == 0 {
						return
					}
					mu.Lock()
					claimed[got[0].Source]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for p := range runstore.Position(n) {
			if claimed[p+1] > 1 {
				t.Errorf("%d servers: task %d was claimed %d times", servers, p+1, claimed[p+1])
			}
		}
		t.Logf("%d servers: %d commits for %d claims", servers, commits, len(claimed))
		if servers == 1 && (commits != n || len(claimed) != n) {
			t.Errorf("%d commits for %d claims of %d tasks, want one each", commits, len(claimed), n)
		}
	}
}
