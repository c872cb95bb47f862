package tape_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
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
