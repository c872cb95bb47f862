package tape_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestTrimTasks checks that tasks which ended before the given times are deleted, over several commits and in
// shards of deregistered reactions. Open tasks, younger tasks and the cursor stay.
func TestTrimTasks(t *testing.T) {
	t.Parallel()
	tp, store, clock := newTape(t)
	const old = 150
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	end := func(n int, dead bool) {
		t.Helper()
		for claimed := 0; claimed < n; {
			all := claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: -1, Owner: "w", Max: n - claimed})
			claimed += len(all)
			for _, k := range all {
				var err error
				if dead {
					_, err = tp.NackTask(t.Context(), k.ID, "w", "x", true)
				} else {
					_, err = tp.CompleteTask(t.Context(), k.ID, "w")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s.advance(old, matches(positions(1, old)...)...)
	end(old, false)
	s.advance(old+3, matches(positions(old+1, old+3)...)...)
	end(2, true)
	clock.Advance(10 * 24 * time.Hour)
	s.advance(old+8, matches(positions(old+4, old+8)...)...)
	end(2, false)
	if _, err := tp.DeregisterReaction(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	now, _ := store.Now(t.Context())
	count := func(status tape.TaskStatus) int {
		t.Helper()
		all, err := tp.ListTasks(t.Context(), "r", status, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	trim := func(want tape.TasksTrimmed, o tape.TaskTrim) {
		t.Helper()
		got, err := tp.TrimTasks(t.Context(), o)
		if err != nil || got != want {
			t.Errorf("%+v: got %+v, %v, want %+v", o, got, err, want)
		}
	}
	week := now.Add(-7 * 24 * time.Hour)
	trim(tape.TasksTrimmed{Shards: 1, Done: old, Kept: 2}, tape.TaskTrim{Done: week, DryRun: true})
	if n := count(tape.TaskDone); n != old+2 {
		t.Fatalf("after a dry run: %d DONE tasks", n)
	}
	stop := errors.New("stop")
	pauses := 0
	got, err := tp.TrimTasks(t.Context(), tape.TaskTrim{Done: week, Pause: func(context.Context) error {
		if pauses++; pauses == 4 { // the scan, the read and the first commit
			return stop
		}
		return nil
	}})
	if n := count(tape.TaskDone); n != old+2-100 {
		t.Errorf("interrupted: %+v, %v, %d DONE tasks", got, err, n)
	}
	trim(tape.TasksTrimmed{Shards: 1, Done: old - 100, Kept: 2}, tape.TaskTrim{Done: week})
	trim(tape.TasksTrimmed{Shards: 1, Kept: 2}, tape.TaskTrim{Done: week})
	trim(tape.TasksTrimmed{Shards: 1, Dead: 2}, tape.TaskTrim{Dead: week})
	if n := count(tape.TaskUnspecified); n != 6 {
		t.Errorf("%d tasks are left", n)
	}
	if c, err := tp.ShardCursor(t.Context(), reactionRun("r", 0)); err != nil || c.Position != old+8 {
		t.Errorf("the cursor is at %+v, %v", c, err)
	}
}

// positions returns the positions from first to last.
func positions(first, last runstore.Position) (all []runstore.Position) {
	for p := first; p <= last; p++ {
		all = append(all, p)
	}
	return all
}

// A task that another call deletes meanwhile does not keep the others of its commit.
func TestTrimTasksTwiceAtOnce(t *testing.T) {
	t.Parallel()
	tp, store, clock := newTape(t)
	s := openShard(t, tp, tape.Reaction{ID: "r"})
	s.advance(3, matches(1, 2, 3)...)
	for _, k := range claimTasks(t, tp, tape.TaskClaim{Reaction: "r", Shard: -1, Owner: "w"}) {
		if _, err := tp.CompleteTask(t.Context(), k.ID, "w"); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(time.Hour)
	now, _ := store.Now(t.Context())
	pauses := 0
	_, err := tp.TrimTasks(t.Context(), tape.TaskTrim{Done: now, Pause: func(ctx context.Context) error {
		if pauses++; pauses == 3 { // before the commit
			keys, err := store.ReadRecords(ctx, reactionRun("r", 0), runstore.RecordQuery{Prefix: "done/", Limit: 1})
			if err != nil {
				return err
			}
			b := runstore.NewBatch(reactionRun("r", 0), runstore.Unguarded("test"))
			b.Delete(keys[0].Key)
			_, err = store.Commit(ctx, b)
			return err
		}
		return nil
	}})
	if left, failed := tp.ListTasks(t.Context(), "r", tape.TaskDone, 0); err != nil || failed != nil || len(left) != 0 {
		t.Errorf("%v, %v, %d tasks are left", err, failed, len(left))
	}
}

// Only ended runs of Tape qualify for retention, and not those that wait for a person.
func TestEnded(t *testing.T) {
	t.Parallel()
	tp, store, clock := newTape(t)
	for i, c := range []struct {
		status tape.RunStatus
		ok     bool
	}{{tape.RunTerminal, true}, {tape.RunFailed, true}, {tape.RunCancelled, true}, {tape.RunStuck, false}, {tape.RunRunning, false}} {
		begun, err := tp.BeginRun(t.Context(), beginRequest(c.status.String()))
		if err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Hour)
		if c.status != tape.RunRunning {
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: begun.ID, Status: c.status, Fence: begun.Lease.Fence()}); err != nil {
				t.Fatal(err)
			}
		}
		head, err := store.GetRun(t.Context(), begun.ID)
		if err != nil {
			t.Fatal(err)
		}
		run, err := tp.GetRun(t.Context(), begun.ID)
		if at, ok := tape.Ended(head); err != nil || ok != c.ok || ok && !at.Equal(run.EndedAt) {
			t.Errorf("%d, %v: Ended = %v, %v; the run %+v, %v", i, c.status, at, ok, run, err)
		}
		head.Summary = runstore.Record{}
		if _, ok := tape.Ended(head); ok {
			t.Errorf("%v: a run of another program has ended", c.status)
		}
	}
	for index, want := range map[runstore.IndexName]bool{
		tape.IndexEnded: true, tape.IndexSession + "/x": true, tape.IndexTimers: false, tape.IndexUnknown: false, tape.IndexPending: false,
		tape.IndexDispatch: false, tape.IndexObligations: false, tape.IndexStuckObligations: false, "": false, tape.IndexSession: false,
	} {
		if got := tape.Settled(index); got != want {
			t.Errorf("Settled(%q) = %v", index, got)
		}
	}
}
