package tape_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func registerReaction(t *testing.T, tp *tape.Tape, r tape.Reaction) tape.Reaction {
	t.Helper()
	stored, err := tp.RegisterReaction(t.Context(), r, false)
	if err != nil {
		t.Fatalf("RegisterReaction: %v", err)
	}
	return stored
}

func listReactions(t *testing.T, tp *tape.Tape, pattern string) string {
	t.Helper()
	all, err := tp.ListReactions(t.Context(), pattern)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	return strings.Join(ids, " ")
}

func TestReactionLife(t *testing.T) { // 67, 68
	t.Parallel()
	tp, s, store := newTape(t)
	before, _ := s.Now(t.Context())
	r := registerReaction(t, tp, tape.Reaction{ID: "b", Pattern: "/tape/**", Shards: 3, RateLimit: -7, Handler: 9})
	want := tape.Reaction{
		ID: "b", Pattern: "/tape/**", Handler: 9, MaxConcurrency: 1, RateLimit: -7, RetryMax: 5, RetryBackoffMS: 1000, DLQAfter: 5,
		Shards: 3, CreatedAtMS: r.CreatedAtMS, Version: 1,
	}
	if r != want || r.CreatedAtMS < before.UnixMilli() {
		t.Errorf("registered %+v, want %+v", r, want)
	}
	store.Advance(time.Second)
	if again := registerReaction(t, tp, tape.Reaction{ID: "b", Pattern: "/tape/**", Shards: 3, RateLimit: -7, Handler: 9}); again != r {
		t.Errorf("registered as it was: %+v, want %+v", again, r)
	}
	registerReaction(t, tp, tape.Reaction{ID: "c", Pattern: "/tape/run/**"})
	registerReaction(t, tp, tape.Reaction{ID: "a", Pattern: "/tape/**", CreatedAtMS: r.CreatedAtMS - 1})
	store.Advance(time.Second)
	r.Name, r.CreatedAtMS, r.DebounceMS = "new", 5, 100
	changed := registerReaction(t, tp, r)
	r.CreatedAtMS, r.Version = want.CreatedAtMS, 2
	if changed != r {
		t.Errorf("registered anew: %+v, want %+v", changed, r)
	}
	for pattern, want := range map[string]string{"": "a b c", "/tape/**": "a b", "/tape/run/**": "c", "/tape/run/x": ""} {
		if got := listReactions(t, tp, pattern); got != want {
			t.Errorf("ListReactions(%q) = %q, want %q", pattern, got, want)
		}
	}
	for _, id := range []string{"b", "b"} {
		if existed, err := tp.DeregisterReaction(t.Context(), id); !existed || err != nil {
			t.Errorf("DeregisterReaction = %t, %v", existed, err)
		}
	}
	if existed, err := tp.DeregisterReaction(t.Context(), "never"); existed || err != nil {
		t.Errorf("DeregisterReaction of no reaction = %t, %v", existed, err)
	}
	if got := listReactions(t, tp, ""); got != "a c" {
		t.Errorf("after the deregistration: %q", got)
	}
	r.Version = 4
	if revived := registerReaction(t, tp, r); revived != r || listReactions(t, tp, "") != "a b c" {
		t.Errorf("revived %+v, and listed are %q", revived, listReactions(t, tp, ""))
	}
	if made := registerReaction(t, tp, tape.Reaction{}); len(made.ID) != 36 {
		t.Errorf("a reaction without an id gets %q", made.ID)
	}
}

// The start is fixed at the first registration: the end of the feed, or its beginning.
func TestReactionStart(t *testing.T) { // 66
	t.Parallel()
	tp, s, _ := newTape(t)
	if r, err := tp.RegisterReaction(t.Context(), tape.Reaction{ID: "empty"}, true); err != nil || r.Start != 0 {
		t.Errorf("the end of an empty feed: %+v, %v", r, err)
	}
	begin(t, tp, "i")
	begin(t, tp, "j")
	events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
	if err != nil || len(events) != 2 {
		t.Fatalf("feed: %v, %v", events, err)
	}
	end := events[1].Position
	for id, want := range map[string]runstore.Position{"head": end, "empty": 0, "tail": 0} {
		r, err := tp.RegisterReaction(t.Context(), tape.Reaction{ID: id, Start: 77}, id != "tail")
		if err != nil || r.Start != want {
			t.Errorf("%s starts at %d, %v, want %d", id, r.Start, err, want)
		}
	}
	begin(t, tp, "k")
	for _, fromHead := range []bool{false, true} {
		if r, err := tp.RegisterReaction(t.Context(), tape.Reaction{ID: "head", Name: fmt.Sprint(fromHead)}, fromHead); err != nil || r.Start != end {
			t.Errorf("registered again, it starts at %d, %v, want %d", r.Start, err, end)
		}
	}
}

func TestReactionLimits(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	registerReaction(t, tp, tape.Reaction{ID: "r", Shards: 2})
	before := historyOf(t, s, reactionRun("r", 0))
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		r     tape.Reaction
		kind  error
		field string
		limit string
	}{
		{tape.Reaction{ID: x(1025)}, runstore.ErrTooLarge, "reaction_id", "1024"},
		{tape.Reaction{ID: "\xff"}, runstore.ErrInvalid, "reaction_id", "UTF-8"},
		{tape.Reaction{ID: "r", Name: x(16 << 10)}, runstore.ErrTooLarge, "name", "16384"},
		{tape.Reaction{ID: "r", AgentApp: x(16 << 10)}, runstore.ErrTooLarge, "agent_app", "16384"},
		{tape.Reaction{ID: "r", PublishTarget: x(16 << 10)}, runstore.ErrTooLarge, "publish_target", "16384"},
		{tape.Reaction{ID: "r", Name: "\xff"}, runstore.ErrInvalid, "name", "UTF-8"},
		{tape.Reaction{ID: "r", Pattern: x(1025)}, runstore.ErrTooLarge, "subject_pattern", "1024"},
		{tape.Reaction{ID: "r", Pattern: "\xff"}, runstore.ErrInvalid, "subject_pattern", "UTF-8"},
		{tape.Reaction{ID: "r", Predicate: x(4097)}, runstore.ErrTooLarge, "predicate_cel", "4096"},
		{tape.Reaction{ID: "r", Predicate: "\xff"}, runstore.ErrInvalid, "predicate_cel", "UTF-8"},
		{tape.Reaction{ID: "r", Shards: 257}, runstore.ErrInvalid, "num_shards", "256"},
		{tape.Reaction{ID: "r", Shards: 3}, runstore.ErrInvalid, "num_shards", "another reaction_id"},
		{tape.Reaction{ID: "r"}, runstore.ErrInvalid, "num_shards", "another reaction_id"}, // 1 by default
		{tape.Reaction{ID: "r", CreatedAtMS: 1 << 60}, runstore.ErrInvalid, "created_at_ms", "9999"},
	} {
		_, err := tp.RegisterReaction(t.Context(), c.r, false)
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Kind != c.kind || limit.Field != c.field || !strings.Contains(limit.Problem, c.limit) {
			t.Errorf("%v, want %v naming %s and %s", err, c.kind, c.field, c.limit)
		}
	}
	if after := historyOf(t, s, reactionRun("r", 0)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused input changed %v to %v", before, after)
	}
	full := tape.Reaction{ID: x(1024), Name: x(15 << 10), Pattern: x(1024), Predicate: x(4096), Shards: 256}
	if r := registerReaction(t, tp, full); r.Name != full.Name || r.Predicate != full.Predicate {
		t.Error("a reaction at the limits is not stored as it came")
	}
	if _, err := tp.ListReactions(t.Context(), x(1025)); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("ListReactions of a long pattern = %v", err)
	}
	if _, err := tp.DeregisterReaction(t.Context(), x(1025)); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("DeregisterReaction of a long id = %v", err)
	}
}

// Of concurrent first registrations one fixes the start and the creation, and replies that are lost
// change nothing.
func TestConcurrentRegistrations(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	begin(t, inner, "i")
	tp := tape.New(&lossy{RunStore: s}, nil)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r, err := tp.RegisterReaction(t.Context(), tape.Reaction{ID: "r", Name: fmt.Sprint(i), CreatedAtMS: int64(i + 1)}, i%2 == 0)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprint(r.CreatedAtMS, r.Start)] = true
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("the creation and the start were answered as %v, want one answer", seen)
	}
	if listReactions(t, tp, "") != "r" {
		t.Errorf("listed are %q", listReactions(t, tp, ""))
	}
}

// More reactions than fit into an answer: the list ends, the iteration does not.
func TestListsOfReactionsFitIntoAnAnswer(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	const n = 300
	for i := range n {
		registerReaction(t, tp, tape.Reaction{ID: fmt.Sprintf("%03d", i), CreatedAtMS: int64(i + 1), Name: strings.Repeat("x", 16_000)})
	}
	listed, err := tp.ListReactions(t.Context(), "")
	if err != nil || len(listed) < 250 || len(listed) > 262 || listed[0].ID != "000" {
		t.Errorf("%d reactions, %v", len(listed), err)
	}
	all := 0
	for r, err := range tp.Reactions(t.Context()) {
		if err != nil || r.ID != fmt.Sprintf("%03d", all) {
			t.Fatalf("reaction %d is %q, %v", all, r.ID, err)
		}
		all++
	}
	if all != n {
		t.Errorf("%d reactions, want %d", all, n)
	}
}

// No list of runs shows the run of a shard, and the shard's lease can be taken.
func TestShardsAreNoRuns(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := registerReaction(t, tp, tape.Reaction{ID: "r", Shards: 2})
	for shard := range r.Shards {
		id, err := tp.OpenShard(t.Context(), r, shard)
		if err != nil || id != reactionRun("r", shard) {
			t.Fatalf("OpenShard = %q, %v", id, err)
		}
		leaseOf(t, s, id)
	}
	store.Advance(time.Hour)
	runs, err := tp.ListRunsToRecover(t.Context(), time.Time{}, 0)
	if err != nil || len(runs) != 0 {
		t.Errorf("to recover are %v, %v", runs, err)
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable} {
		if page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 10}); err != nil || len(page) != 0 {
			t.Errorf("%s has %v, %v", index, page, err)
		}
	}
	for _, shard := range []int32{-1, 2} {
		if _, err := tp.OpenShard(t.Context(), r, shard); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("OpenShard(%d) = %v", shard, err)
		}
	}
	if _, err := tp.ShardCursor(t.Context(), "reaction/none/0"); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("ShardCursor of no shard = %v", err)
	}
	if got := (tape.Reaction{Shards: 7}).ShardOf(""); got != int32(uint32(0x811c9dc5)%7) {
		t.Errorf("the entries of values are in shard %d", got)
	}
	if got := (tape.Reaction{Shards: 1000}).ShardOf("a"); got != int32(uint32(0xe40c292c)%1000) {
		t.Errorf("the entries of run a are in shard %d", got)
	}
}
