package tape_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// lateFeed is a store whose feed shows only its first event until shown is set. If down is set, it refuses
// commits that release a lease.
type lateFeed struct {
	runstore.RunStore
	shown, down bool
}

func (s *lateFeed) Unwrap() runstore.RunStore { return s.RunStore }

func (s *lateFeed) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	page, err := s.RunStore.ReadFeed(ctx, q)
	switch {
	case s.shown:
		return page, err
	case q.After > 0 || len(page) == 0:
		return nil, err
	default:
		return page[:1], err
	}
}

func (s *lateFeed) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.down && b.Release {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnavailable}
	}
	return s.RunStore.Commit(ctx, b)
}

// TestMoveCursors checks that all cursors are at the end of the feed afterwards: of open shards, of
// shards that no matcher has opened, and of deregistered reactions. It waits for events that the feed does
// not show yet, and runs that a cursor names are still begun.
func TestMoveCursors(t *testing.T) {
	t.Parallel()
	_, h, _ := newTape(t)
	late := &lateFeed{RunStore: h}
	tp := tape.New(late, nil)
	begin(t, tp, "1")
	begin(t, tp, "2")
	open := openShard(t, tp, tape.Reaction{ID: "open", Shards: 2})
	open.advance(1 << 50)
	agent := openShard(t, tp, tape.Reaction{ID: "agent", Handler: tape.HandlerAgent, AgentApp: "app"})
	agent.advance(9, matches(7)...)
	ended := openShard(t, tp, tape.Reaction{ID: "ended"})
	if _, err := tp.DeregisterReaction(t.Context(), "ended"); err != nil {
		t.Fatal(err)
	}
	never := registerReaction(t, tp, tape.Reaction{ID: "never", Handler: tape.HandlerTask})
	move := func(m tape.CursorMove) (tape.CursorsMoved, error) { return tp.MoveCursors(t.Context(), m) }
	if _, err := move(tape.CursorMove{Replay: true}); !errors.Is(err, runstore.ErrLeaseHeld) {
		t.Fatalf("MoveCursors while a matcher has a shard: %v", err)
	}
	for _, s := range []*shard{open, agent, ended} {
		if _, err := tp.Store().ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: s.f}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := move(tape.CursorMove{Reactions: []string{"open", "none"}}); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("MoveCursors of a reaction that does not exist: %v", err)
	}
	late.shown = true
	feed, err := tp.Store().ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	end := feed[0].Position

	late.shown = false
	waited := 0
	done, err := move(tape.CursorMove{Waiting: func(runs int) {
		waited = runs
		late.shown = true
	}})
	if want := (tape.CursorsMoved{Reactions: 4, Shards: 5, Position: end}); err != nil || done != want || waited != 1 {
		t.Fatalf("MoveCursors = %+v, %v, after waiting for %d runs, want %+v and 1", done, err, waited, want)
	}
	check := func(r tape.Reaction, want runstore.Position, pending int) {
		t.Helper()
		r = registerReaction(t, tp, r)
		cursors, err := tp.Cursors(t.Context(), r)
		if err != nil || r.Start != want {
			t.Fatalf("reaction %q starts at %d, %v, want %d", r.ID, r.Start, err, want)
		}
		for n, c := range cursors {
			if c.Position != want || c.PendingRuns() != pending || c.Version == 0 {
				t.Errorf("shard %d of %q is at %+v, want %d and %d runs to begin", n, r.ID, c, want, pending)
			}
		}
	}
	check(open.Reaction, end, 0)
	check(agent.Reaction, end, 1)
	check(ended.Reaction, end, 0)
	check(never, end, 0)

	done, err = move(tape.CursorMove{Replay: true, Reactions: []string{"open"}}) // the leases have ended
	if want := (tape.CursorsMoved{Reactions: 1, Shards: 2}); err != nil || done != want {
		t.Errorf("MoveCursors of one reaction = %+v, %v, want %+v", done, err, want)
	}
	check(open.Reaction, 0, 0)
	check(never, end, 0)

	late.down = true
	if done, err := move(tape.CursorMove{Replay: true}); !errors.Is(err, runstore.ErrUnavailable) || done.Shards != 0 {
		t.Errorf("MoveCursors whose commit is not applied = %+v, %v", done, err)
	}
	late.down = false
	if _, err := move(tape.CursorMove{Replay: true}); err != nil { // it has released the lease that it had
		t.Errorf("MoveCursors that is repeated: %v", err)
	}
	check(never, 0, 0)

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	late.shown = false
	if _, err := tp.MoveCursors(ctx, tape.CursorMove{Waiting: func(int) { cancel(stop) }}); !errors.Is(err, stop) {
		t.Errorf("MoveCursors that ends while it waits: %v", err)
	}
}

// replay moves the cursor of an open shard back to the start of the feed and takes the shard again.
func (s *shard) replay() {
	s.t.Helper()
	if _, err := s.tp.Store().ReleaseLease(s.t.Context(), runstore.ReleaseRequest{Fence: s.f}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.tp.MoveCursors(s.t.Context(), tape.CursorMove{Replay: true, Reactions: []string{s.ID}}); err != nil {
		s.t.Fatal(err)
	}
	s.f = leaseOf(s.t, s.tp.Store(), s.f.Run())
	var err error
	if s.at, err = s.tp.ShardCursor(s.t.Context(), s.f.Run()); err != nil || s.at.Position != 0 {
		s.t.Fatalf("ShardCursor = %+v, %v, want 0", s.at, err)
	}
}

// TestReplayPassesOpenTasks checks that a shard whose cursor was moved back passes the entries that have an
// open task, PENDING or CLAIMED, and makes tasks for the others, also for entries whose task has ended.
func TestReplayPassesOpenTasks(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	const n = 30
	var all []tape.Entry
	for p := range runstore.Position(n) {
		all = append(all, match(p+1, fmt.Sprintf("/s/%d", p+1)))
	}
	s.advance(n, all...)
	claimed := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w", Max: 2})
	if len(claimed) != 2 {
		t.Fatalf("claimed %+v, want 2 tasks", claimed)
	}
	if _, err := tp.CompleteTask(t.Context(), claimed[0].ID, "w"); err != nil {
		t.Fatal(err)
	}
	before, err := tp.ListTasks(t.Context(), "r", 0, 0)
	if err != nil || len(before) != n {
		t.Fatalf("%d tasks, %v, want %d", len(before), err, n)
	}
	s.replay()
	s.advance(n+1, append(all, match(n+1, "/s/new"))...)
	if s.at.Position != n+1 {
		t.Errorf("the cursor is at %+v, want %d", s.at, n+1)
	}
	after, err := tp.ListTasks(t.Context(), "r", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	fresh := map[runstore.Position]bool{}
	for _, k := range after {
		if !slices.Contains(before, k) { // the others are unchanged, the CLAIMED one too
			fresh[k.Source] = k.Status == tape.TaskPending
		}
	}
	if done := claimed[0].Source; len(after) != n+1 || len(fresh) != 2 || !fresh[done] || !fresh[n+1] {
		t.Errorf("%d tasks, PENDING anew for %v, want %d, and a new one for the DONE one's entry, %d, and for %d",
			len(after), fresh, n+1, done, n+1)
	}
}

// TestReplayCutAnywhere cuts the advance of a shard that passes entries with open tasks at each store call.
// It has moved the cursor, or returns ErrUnavailable and has not, and the next advance goes on.
func TestReplayCutAnywhere(t *testing.T) {
	t.Parallel()
	for calls := 0; ; calls++ {
		tp, store, _ := newTape(t)
		s := openShard(t, tp, tape.Reaction{ID: "r"})
		s.advance(5, matches(3, 5)...)
		s.replay()
		next, err := tape.New(failing(store, calls), nil).Advance(t.Context(), s.f, s.Reaction, s.at, matches(3, 5, 7), 7)
		c, readErr := tp.ShardCursor(t.Context(), s.f.Run())
		if readErr != nil {
			t.Fatal(readErr)
		}
		if moved := err == nil; moved && (c != next || c.Position != 7) || !moved && (c != s.at || !errors.Is(err, runstore.ErrUnavailable)) {
			t.Errorf("after %d calls: %+v, %v, and the cursor is at %+v", calls, next, err, c)
		}
		if err == nil {
			return
		}
		s.advance(7, matches(3, 5, 7)...)
		if got := listTasks(t, tp, "r", 0); got != "7:1 5:1 3:1" {
			t.Errorf("after %d calls and another advance: tasks %s, want one for each entry", calls, got)
		}
	}
}

// TestReplayPassesDebouncedTasks checks that a task that stands for several entries is passed like one of
// its first entry.
func TestReplayPassesDebouncedTasks(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: 60_000})
	all := []tape.Entry{match(1, "a"), match(2, "b"), match(3, "a")}
	s.advance(1, all[:1]...)
	s.advance(3, all...)
	if got := listTasks(t, tp, "r", 0); got != "2:1 3:1" {
		t.Fatalf("tasks: %s", got)
	}
	store.Advance(time.Hour) // later entries change no task
	s.replay()
	s.advance(3, all...)
	if got := listTasks(t, tp, "r", 0); got != "3:1 2:1 3:1" || s.at.Position != 3 {
		t.Errorf("tasks: %s at %d, want one more for the last entry, at 3", got, s.at.Position)
	}
}

// TestTaskOfAnotherEntryIsNotPassed checks that an entry waits for the end of a task that has its position
// in the feed of another store, as after an import, and gets a task then.
func TestTaskOfAnotherEntryIsNotPassed(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	s.advance(5, matches(4, 5)...)
	s.replay()
	again := append(matches(4), match(5, "/s/other"))
	var conflict *runstore.ConflictError
	if at, err := tp.Advance(t.Context(), s.f, s.Reaction, s.at, again, 5); !errors.As(err, &conflict) || at != s.at {
		t.Fatalf("Advance = %+v, %v, want a conflict and the cursor unmoved", at, err)
	}
	if got := listTasks(t, tp, "r", 0); got != "5:1 4:1" {
		t.Errorf("tasks: %s, want them unchanged", got)
	}
	for _, k := range claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "w"}) {
		if _, err := tp.CompleteTask(t.Context(), k.ID, "w"); err != nil {
			t.Fatal(err)
		}
	}
	s.advance(5, again...)
	if got := listTasks(t, tp, "r", tape.TaskPending); got != "5:1 4:1" {
		t.Errorf("tasks: %s, want one for each entry", got)
	}
}

// TestFeedEndDropsReplacedRuns checks that FeedEnd does not wait for the events of a run that was purged, or
// created anew with fewer events.
func TestFeedEndDropsReplacedRuns(t *testing.T) {
	t.Parallel()
	_, h, _ := newTape(t)
	late := &lateFeed{RunStore: h}
	for _, id := range []runstore.RunID{"shown", "purged", "replaced"} {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", nil)
		if _, err := h.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancelCause(t.Context())
	var waits []int
	_, err := tape.New(late, nil).FeedEnd(ctx, func(runs int) {
		if waits = append(waits, runs); len(waits) > 1 {
			stop(errors.New("it waits again"))
			return
		}
		for _, id := range []runstore.RunID{"purged", "replaced"} {
			b := runstore.NewBatch(id, runstore.AtToken(0))
			b.Purge = true
			if _, err := h.Commit(ctx, b); err != nil {
				t.Error(err)
			}
		}
		if _, err := h.CreateRun(ctx, runstore.RunSpec{ID: "replaced"}); err != nil {
			t.Error(err)
		}
	})
	if err != nil || len(waits) != 1 || waits[0] != 2 {
		t.Errorf("FeedEnd: %v, after waits for %v runs, want one for 2", err, waits)
	}
}

// namelessEvents is a store whose feed does not show which runs its events are of, because it is damaged.
type namelessEvents struct{ *memory.Handle }

func (s namelessEvents) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	page, err := s.Handle.ReadFeed(ctx, q)
	for i, e := range page {
		page[i] = runstore.FeedEvent{Event: runstore.Event{Position: e.Position}, Err: &runstore.CorruptError{Cause: errors.New("test")}}
	}
	return page, err
}

// The end of a feed that is damaged where it has a run's last event is an error: there is nothing to wait for.
func TestFeedEndOfADamagedFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := namelessEvents{memory.New(nil).Open()}
		defer func() { _ = s.Close() }()
		spec := runstore.RunSpec{ID: "run"}
		spec.Writes.Append("test", nil)
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := tape.New(s, nil).FeedEnd(ctx, func(int) {})
		if !errors.Is(err, runstore.ErrCorrupt) || !strings.Contains(err.Error(), "position 1:") {
			t.Errorf("got %v, want ErrCorrupt at position 1", err)
		}
	})
}

// lateEvents shows a damaged entry at once, and the events of the store in ReadFeed's call number shows.
type lateEvents struct {
	*memory.Handle
	calls, shows int
}

func (s *lateEvents) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	s.calls++
	switch {
	case s.calls == 1:
		return []runstore.FeedEvent{{Event: runstore.Event{Position: q.After + 1}, Err: &runstore.CorruptError{Cause: errors.New("test")}}}, nil
	case s.calls < s.shows:
		return nil, nil
	}
	return s.Handle.ReadFeed(ctx, q)
}

// A feed with old damage that only lags is waited for: the run's event is shown ten seconds after the damage.
func TestFeedEndOfADamagedFeedThatLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lateEvents{Handle: memory.New(nil).Open(), shows: 102}
		defer func() { _ = s.Close() }()
		spec := runstore.RunSpec{ID: "run"}
		for range 2 {
			spec.Writes.Append("test", nil)
		}
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		waits := 0
		end, err := tape.New(s, nil).FeedEnd(ctx, func(int) { waits++ })
		if err != nil || end != 2 || waits != 100 {
			t.Errorf("got position %d and %v after %d pauses, want 2 after 100", end, err, waits)
		}
	})
}
