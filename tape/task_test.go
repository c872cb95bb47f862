package tape_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func claimTasks(t *testing.T, tp *tape.Tape, req tape.TaskClaim) []tape.Task {
	t.Helper()
	claimed, err := tp.ClaimTasks(t.Context(), req)
	if err != nil {
		t.Fatalf("ClaimTasks: %v", err)
	}
	return claimed
}

func sources(claimed []tape.Task) string {
	var all []string
	for _, k := range claimed {
		all = append(all, fmt.Sprint(k.Source))
	}
	return strings.Join(all, " ")
}

func TestTaskLife(t *testing.T) { // 69, 70, 71
	t.Parallel()
	tp, store, clock := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	s.advance(1, matches(1)...)
	pending, _ := tp.ListTasks(t.Context(), "r", tape.TaskPending, 0)
	if _, err := tp.CompleteTask(t.Context(), pending[0].ID, "a"); !errors.Is(err, tape.ErrNoSuchTask) {
		t.Errorf("CompleteTask of a PENDING task = %v", err)
	}
	now, _ := store.Now(t.Context())
	k := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: -1, Owner: "a"})[0]
	if k.Status != tape.TaskClaimed || k.Attempts != 1 || k.LeaseOwner != "a" || k.LeaseExpires.Before(now.Add(time.Minute)) || !k.NextAttempt.IsZero() {
		t.Errorf("claimed %+v", k)
	}
	if listed, _ := tp.ListTasks(t.Context(), "r", tape.TaskClaimed, 0); len(listed) != 1 || listed[0] != k {
		t.Errorf("listed %+v, want %+v", listed, k)
	}
	if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: -1, Owner: "b"}); len(got) != 0 {
		t.Errorf("a second claimer gets %v", got)
	}
	clock.Advance(2 * time.Minute)
	late := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "b", Lease: time.Hour})
	if len(late) != 1 || late[0].Attempts != 2 {
		t.Fatalf("after the lease: %v", late)
	}
	for _, report := range []func(id, owner string) error{
		func(id, owner string) error { _, err := tp.CompleteTask(t.Context(), id, owner); return err },
		func(id, owner string) error { _, err := tp.NackTask(t.Context(), id, owner, "x", true); return err },
	} {
		for _, id := range []string{k.ID, "", "x", "a-b-c", strings.Repeat("x", 64) + "-0-" + strings.Repeat("0", 14), k.ID[:64] + "-00" + k.ID[66:], k.ID[:64] + "-999" + k.ID[66:]} {
			if err := report(id, "a"); !errors.Is(err, tape.ErrNoSuchTask) {
				t.Errorf("a report on %q by a former owner = %v", id, err)
			}
		}
		if err := report(k.ID, ""); !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "_task: owner is required") {
			t.Errorf("a report without an owner = %v", err)
		}
	}
	if listed, _ := tp.ListTasks(t.Context(), "r", 0, 0); len(listed) != 1 || listed[0] != late[0] {
		t.Errorf("listed %+v, want %+v", listed, late[0])
	}
	clock.Advance(2 * time.Hour) // no other worker has claimed it
	done, err := tp.CompleteTask(t.Context(), k.ID, "b")
	want := late[0]
	want.Status, want.LeaseOwner, want.LeaseExpires = tape.TaskDone, "", time.Time{}
	if err != nil || done != want {
		t.Errorf("CompleteTask = %+v, %v, want %+v", done, err, want)
	}
	if listed, _ := tp.ListTasks(t.Context(), "r", tape.TaskDone, 0); len(listed) != 1 || listed[0] != want {
		t.Errorf("listed %+v, want %+v", listed, want)
	}
	if _, err := tp.CompleteTask(t.Context(), k.ID, "b"); !errors.Is(err, tape.ErrNoSuchTask) {
		t.Errorf("a second CompleteTask = %v", err)
	}
	if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "b"}); len(got) != 0 {
		t.Errorf("a DONE task is claimed: %v", got)
	}
	wantNoPlaces(t, store, "r")
}

// wantNoPlaces checks that no task of a reaction stands in a queue.
func wantNoPlaces(t *testing.T, s runstore.RunStore, reaction string) {
	t.Helper()
	run := string(reactionRun(reaction, 0))
	hash := run[len("reaction/") : len(run)-len("/0")]
	for _, index := range []string{"task.due/" + hash, "task.due/" + hash + "/0", "task.open/" + hash} {
		page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexName(index), Until: runstore.EndOfTime, Limit: 10})
		if err != nil || len(page) != 0 {
			t.Errorf("%s has %v, %v", index, page, err)
		}
	}
}

func TestFailedAttempts(t *testing.T) { // 72
	t.Parallel()
	const slack = 10 * time.Minute // real time also moves the store clock
	tp, store, clock := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DLQAfter: 4, RetryBackoffMS: 1_500_000})
	s.advance(1, matches(1)...)
	for attempt, pause := range []time.Duration{1500 * time.Second, 3000 * time.Second, time.Hour, 0} {
		k := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})
		if len(k) != 1 || k[0].Attempts != int32(attempt+1) {
			t.Fatalf("attempt %d: claimed %+v", attempt+1, k)
		}
		if _, err := tp.DeregisterReaction(t.Context(), "r"); err != nil { // its tasks stay, and its numbers
			t.Fatal(err)
		}
		before, _ := store.Now(t.Context())
		failed, err := tp.NackTask(t.Context(), k[0].ID, "a", fmt.Sprint("no ", attempt), false)
		after, _ := store.Now(t.Context())
		if err != nil || failed.LastError != fmt.Sprint("no ", attempt) || failed.LeaseOwner != "" || !failed.LeaseExpires.IsZero() {
			t.Errorf("NackTask = %+v, %v", failed, err)
		}
		if attempt == 3 {
			if failed.Status != tape.TaskDLQ {
				t.Errorf("after the last attempt: %+v", failed)
			}
			break
		}
		if failed.Status != tape.TaskPending || failed.NextAttempt.Before(before.Add(pause)) || failed.NextAttempt.After(after.Add(pause)) {
			t.Errorf("attempt %d: %+v, want the next one %v later", attempt+1, failed, pause)
		}
		if listed, _ := tp.ListTasks(t.Context(), "r", tape.TaskPending, 0); len(listed) != 1 || listed[0] != failed {
			t.Errorf("listed %+v, want %+v", listed, failed)
		}
		clock.Advance(pause - slack)
		if got := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"}); len(got) != 0 {
			t.Errorf("claimed too early: %+v", got)
		}
		clock.Advance(slack)
	}
	s.advance(2, matches(2)...)
	k := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})[0]
	if failed, err := tp.NackTask(t.Context(), k.ID, "a", strings.Repeat("é", tape.MaxTaskError), true); err != nil || failed.Status != tape.TaskDLQ || len(failed.LastError) != tape.MaxTaskError {
		t.Errorf("a permanent error: %v, %v", failed.Status, err)
	}
	if _, err := tp.NackTask(t.Context(), k.ID, "a", "\xff", true); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("an error that is not UTF-8: %v", err)
	}
	if got := listTasks(t, tp, "r", tape.TaskDLQ); got != "2:5 1:5" {
		t.Errorf("DLQ: %s", got)
	}
	wantNoPlaces(t, store, "r")
}

// Leases that expire send no task to the DLQ.
func TestExpiryIsNoFailure(t *testing.T) {
	t.Parallel()
	tp, _, clock := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r", DLQAfter: 1})
	s.advance(1, matches(1)...)
	for n := range int32(10) {
		k := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})
		if len(k) != 1 || k[0].Attempts != n+1 {
			t.Fatalf("claim %d: %+v", n+1, k)
		}
		clock.Advance(time.Minute)
	}
}

// A claim and a list end where the next task would not fit into an answer.
func TestAnswersOfTasksAreBounded(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	var all []tape.Entry
	for p := range 10 {
		e := match(runstore.Position(p+1), "/s")
		e.Payload = strings.Repeat("x", 1<<20-2000)
		all = append(all, e)
	}
	for s.at.Position < 10 {
		s.advance(10, all...)
	}
	if listed, err := tp.ListTasks(t.Context(), "r", 0, 0); err != nil || len(listed) != 4 || listed[0].Source != 10 {
		t.Errorf("listed %s, %v", sources(listed), err)
	}
	for _, want := range []string{"1 2 3 4", "5 6 7 8", "9 10", ""} {
		if got := sources(claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})); got != want {
			t.Errorf("claimed %q, want %q", got, want)
		}
	}
	if listed, err := tp.ListTasks(t.Context(), "r", tape.TaskClaimed, 0); err != nil || sources(listed) != "10 9 8 7" {
		t.Errorf("listed %s, %v", sources(listed), err)
	}
}

func TestListTasks(t *testing.T) {
	t.Parallel()
	tp, _, clock := newTape(t)
	if listed, err := tp.ListTasks(t.Context(), "none", 0, 0); err != nil || len(listed) != 0 {
		t.Errorf("of no reaction: %v, %v", listed, err)
	}
	registerReaction(t, tp, tape.Reaction{ID: "r"})
	if listed, err := tp.ListTasks(t.Context(), "r", 0, 0); err != nil || len(listed) != 0 {
		t.Errorf("of a reaction that was never opened: %v, %v", listed, err)
	}
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	for p := range runstore.Position(250) {
		s.advance(p+1, matches(p+1)...)
		clock.Advance(time.Millisecond)
	}
	for i, k := range claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a", Max: 90}) {
		var err error
		switch i % 3 {
		case 0:
			_, err = tp.CompleteTask(t.Context(), k.ID, "a")
		case 1:
			_, err = tp.NackTask(t.Context(), k.ID, "a", "", true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for status, want := range map[tape.TaskStatus]struct{ n, first int }{
		0: {200, 250}, tape.TaskPending: {160, 250}, tape.TaskClaimed: {30, 90}, tape.TaskDone: {30, 88}, tape.TaskDLQ: {30, 89}, tape.TaskFailed: {0, 0}, 77: {0, 0},
	} {
		listed, err := tp.ListTasks(t.Context(), "r", status, 0)
		if err != nil || len(listed) != want.n || want.n > 0 && listed[0].Source != runstore.Position(want.first) {
			t.Errorf("status %d: %d tasks, %v, want %v", status, len(listed), err, want)
		}
		for i := range listed {
			if i > 0 && listed[i].Source >= listed[i-1].Source || status != 0 && listed[i].Status != status {
				t.Errorf("status %d: task %d is %+v", status, i, listed[i])
			}
		}
		if few, err := tp.ListTasks(t.Context(), "r", status, 3); err != nil || len(few) != min(3, want.n) {
			t.Errorf("status %d: %d of 3 tasks, %v", status, len(few), err)
		}
	}
	if all, err := tp.ListTasks(t.Context(), "r", 0, 1000); err != nil || len(all) != 250 {
		t.Errorf("%d tasks, %v", len(all), err)
	}
}

// Each report and each claim is applied once although replies are lost.
func TestLostRepliesOfTasks(t *testing.T) {
	t.Parallel()
	inner, store, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: store}, nil)
	s := openShard(t, inner, tape.Reaction{ID: "r"})
	s.tp = tp
	for p := range runstore.Position(20) {
		s.advance(p+1, matches(p+1)...)
		k := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Owner: "a"})
		if sources(k) != fmt.Sprint(p+1) || k[0].Attempts != 1 {
			t.Fatalf("claimed %+v", k)
		}
		var err error
		if p%2 == 0 {
			_, err = tp.CompleteTask(t.Context(), k[0].ID, "a")
		} else {
			_, err = tp.NackTask(t.Context(), k[0].ID, "a", "", true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if done, dlq := listTasks(t, inner, "r", tape.TaskDone), listTasks(t, inner, "r", tape.TaskDLQ); len(strings.Fields(done)) != 10 || len(strings.Fields(dlq)) != 10 {
		t.Errorf("DONE are %s, in the DLQ %s", done, dlq)
	}
}

// An open task keeps room for its later forms. One that has ended keeps none, and stands in no queue.
func TestTasksKeepRoom(t *testing.T) {
	t.Parallel()
	tp, s, clock := newTape(t)
	sh := openShard(t, tp, tape.Reaction{ID: "r", DebounceMS: 1000, RetryBackoffMS: 1})
	store := &reserved{s, map[runstore.RecordKey][]runstore.RecordWrite{}}
	sh.tp = tape.New(store, nil)
	keeps := func(when string, key runstore.RecordKey, records int) {
		t.Helper()
		later, found := store.last[key]
		if len(later) != records || !found {
			t.Fatalf("%s: it keeps room for %d records, want %d", when, len(later), records)
		}
		if records > 0 && (later[0].Key != key || len(later[0].Value) < tape.MaxTask || len(later[0].Index) != 4) {
			t.Errorf("%s: it keeps room for %q with %d bytes and %d places", when, later[0].Key, len(later[0].Value), len(later[0].Index))
		}
	}
	sh.advance(1, matches(1)...)
	const open, done runstore.RecordKey = "task/00000000000001", "done/1ffffffffffffe"
	keeps("created", open, 1)
	k := claimTasks(t, sh.tp, tape.TaskClaim{Reaction: "r", Owner: "w"})[0]
	keeps("claimed", open, 1)
	if _, err := sh.tp.NackTask(t.Context(), k.ID, "w", "", false); err != nil {
		t.Fatal(err)
	}
	keeps("failed", open, 1)
	clock.Advance(time.Second)
	claimTasks(t, sh.tp, tape.TaskClaim{Reaction: "r", Owner: "w"})
	if _, err := sh.tp.CompleteTask(t.Context(), k.ID, "w"); err != nil {
		t.Fatal(err)
	}
	keeps("ended", open, 0)
	keeps("ended", done, 0)
}

// TestStoreCallsOfShards counts the calls that no RPC makes. Those of the RPCs are in ../tapeserver.
func TestStoreCallsOfShards(t *testing.T) {
	t.Parallel()
	for debounce, want := range map[int32]string{0: "[commit]", 1000: "[now scan scan commit]"} {
		inner, s, _ := newTape(t)
		c := &counter{RunStore: s}
		tp := tape.New(c, nil)
		r := registerReaction(t, inner, tape.Reaction{ID: "r", Handler: tape.HandlerTask, DebounceMS: debounce})
		id, err := tp.OpenShard(t.Context(), r, 0)
		if got := fmt.Sprint(c.take()); err != nil || got != "[records create commit]" {
			t.Errorf("the first OpenShard makes the calls %s, %v", got, err)
		}
		if _, err := tp.OpenShard(t.Context(), r, 0); err != nil || fmt.Sprint(c.take()) != "[records]" {
			t.Errorf("a later OpenShard makes other calls than one read, or fails: %v", err)
		}
		at, err := tp.ShardCursor(t.Context(), id)
		if got := fmt.Sprint(c.take()); err != nil || got != "[records]" {
			t.Errorf("ShardCursor makes the calls %s, %v", got, err)
		}
		f := leaseOf(t, s, id)
		if at, err = tp.Advance(t.Context(), f, r, at, nil, 4); err != nil || fmt.Sprint(c.take()) != "[commit]" {
			t.Errorf("Advance without matches makes other calls than one commit, or fails: %v", err)
		}
		if _, err = tp.Advance(t.Context(), f, r, at, []tape.Entry{match(5, "a"), match(6, "b"), match(7, "a")}, 9); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(c.take()); got != want {
			t.Errorf("with a debounce of %d ms Advance makes the calls %s, want %s", debounce, got, want)
		}
	}
}
