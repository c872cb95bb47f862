package matcher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// TestBacklogs checks that a backlog counts the entries that match, after the cursors of their shards, and the
// runs that a cursor names; and that a cursor after the end of the feed is an error.
func TestBacklogs(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	tp := tape.New(store, nil)
	want := func(want string) {
		t.Helper()
		all, err := matcher.Backlogs(t.Context(), tp, nil)
		got := ""
		for _, b := range all {
			got += fmt.Sprintf("%s %d %d,", b.Reaction.ID, b.Entries, b.Runs)
		}
		if err != nil || got != want {
			t.Errorf("the backlogs are %q, %v, want %q", got, err, want)
		}
	}
	want("")
	for n := range 4 {
		if _, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app", Invocation: fmt.Sprint(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	agent := reaction("agent", "app", 1)
	agent.Handler, agent.AgentApp, agent.CreatedAtMS = tape.HandlerAgent, "other", 1
	some := reaction("some", "app", 4)
	some.Predicate, some.CreatedAtMS = `payload.invocation_id == "2"`, 2
	none := reaction("none", "another", 1)
	none.CreatedAtMS = 3
	for _, r := range []*tape.Reaction{&agent, &some, &none} {
		stored, err := tp.RegisterReaction(t.Context(), *r, false)
		if err != nil {
			t.Fatal(err)
		}
		*r = stored
	}
	want("agent 4 0,some 1 0,none 0 0,")

	feed, err := store.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
	if err != nil || len(feed) != 4 {
		t.Fatalf("the feed has %d entries, %v", len(feed), err)
	}
	entry, _ := tape.FeedEntryOf(feed[0])
	shard := must[runstore.RunID](t)(tp.OpenShard(t.Context(), agent, 0))
	granted := must[runstore.Granted](t)(store.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: shard, LeaseSpec: runstore.LeaseSpec{Owner: "m", TTL: time.Minute, Grant: runstore.NewGrantID()},
	}))
	at := must[tape.Cursor](t)(tp.ShardCursor(t.Context(), shard))
	at = must[tape.Cursor](t)(tp.Advance(t.Context(), granted.Fence(), agent, at, []tape.Entry{entry}, entry.Position))
	want("agent 3 1,some 1 0,none 0 0,")
	at = must[tape.Cursor](t)(tp.BeginReactionRun(t.Context(), "agent", at))
	must[tape.Cursor](t)(tp.Advance(t.Context(), granted.Fence(), agent, at, nil, 1<<50))
	if _, err := matcher.Backlogs(t.Context(), tp, nil); !errors.Is(err, runstore.ErrStoreBehind) {
		t.Errorf("a cursor after the end of the feed: %v", err)
	}
}

// laterFeed is a store whose feed is empty until shown.
type laterFeed struct {
	runstore.RunStore
	shown bool
}

func (s *laterFeed) Unwrap() runstore.RunStore { return s.RunStore }

func (s *laterFeed) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if !s.shown {
		return nil, nil
	}
	return s.RunStore.ReadFeed(ctx, q)
}

// TestBacklogsWaitForTheFeed checks that entries which the feed does not show yet are counted.
func TestBacklogsWaitForTheFeed(t *testing.T) {
	t.Parallel()
	later := &laterFeed{RunStore: memory.New(nil).Open()}
	tp := tape.New(later, nil)
	if _, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app", Invocation: "1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RegisterReaction(t.Context(), reaction("some", "app", 1), false); err != nil {
		t.Fatal(err)
	}
	waited := 0
	all, err := matcher.Backlogs(t.Context(), tp, func(runs int) { later.shown, waited = true, max(waited, runs) })
	if err != nil || len(all) != 1 || all[0].Entries != 1 {
		t.Errorf("the backlogs are %+v, %v, want one entry", all, err)
	}
	if waited == 0 {
		t.Error("Backlogs did not wait for the feed")
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
