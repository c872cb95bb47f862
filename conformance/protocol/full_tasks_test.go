package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestAShardIsNeverFullForGood adds matches to a shard until the store refuses more, where the
// store limits the records of a run. Workers can then still claim, fail and end the open tasks, and
// the shard continues, because ended tasks take no room.
func TestAShardIsNeverFullForGood(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		tp, ctx := tape.New(store, nil), t.Context()
		check := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		r, err := tp.RegisterReaction(ctx, tape.Reaction{ID: "r", Handler: tape.HandlerTask, DebounceMS: 1, RetryBackoffMS: 1}, false)
		check("RegisterReaction", err)
		run, err := tp.OpenShard(ctx, r, 0)
		check("OpenShard", err)
		g, err := store.AcquireLease(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "m", TTL: 30 * time.Minute}})
		check("AcquireLease", err)
		at, err := tp.ShardCursor(ctx, run)
		check("ShardCursor", err)
		most := effort.Choose(100, 200)                                      // the bound on stores without a limit
		limited := effort.Full() && strings.HasSuffix(t.Name(), "/bigtable") // takes half a minute
		if limited {
			most = 10_000
		}
		// fill returns the number of tasks for which the run has room, up to most.
		fill := func(step int) (n int, full bool) {
			t.Helper()
			for n < most {
				var all []tape.Entry
				for i := range runstore.Position(step) {
					p := at.Position + 1 + i
					all = append(all, tape.Entry{Run: "i", Position: p, Subject: fmt.Sprint("/s/", p), Payload: strings.Repeat("x", 300)})
				}
				next, err := tp.Advance(ctx, g.Fence(), r, at, all, all[step-1].Position)
				if errors.Is(err, runstore.ErrTooLarge) {
					var limit *runstore.InputError
					if !errors.As(err, &limit) || limit.Field != "records" || next != at {
						t.Fatalf("Advance = %+v, %v", next, err)
					}
					return n, true
				}
				check("Advance", err)
				at, n = next, n+step
			}
			return n, false
		}
		first, full := fill(100)
		if full != limited {
			t.Fatalf("after %d tasks the shard is full: %t", first, full)
		}
		claimed, err := tp.ClaimTasks(ctx, tape.TaskClaim{Reaction: "r", Owner: "w", Max: 30})
		check("ClaimTasks", err)
		for i, k := range claimed {
			if len(claimed) != 30 || k.Source != runstore.Position(i+1) {
				t.Fatalf("task %d of %d that were claimed first is that of entry %d", i+1, len(claimed), k.Source)
			}
		}
		if !full {
			return
		}
		fill(7) // leaves less room
		claimed, err = tp.ClaimTasks(ctx, tape.TaskClaim{Reaction: "r", Owner: strings.Repeat("w", tape.MaxClaimer), Max: tape.MaxTaskClaim, Lease: time.Hour})
		check("ClaimTasks", err)
		ended := 0
		for i, k := range claimed {
			switch i % 10 {
			case 0:
				_, err = tp.NackTask(ctx, k.ID, k.LeaseOwner, strings.Repeat("e", tape.MaxTaskError), false)
			case 1:
				_, err = tp.NackTask(ctx, k.ID, k.LeaseOwner, strings.Repeat("e", tape.MaxTaskError), true)
				ended++
			default:
				_, err = tp.CompleteTask(ctx, k.ID, k.LeaseOwner)
				ended++
			}
			check("the end of an attempt", err)
		}
		if again, _ := fill(20); again < ended/2 {
			t.Errorf("after %d of %d tasks have ended, the shard has room for %d", ended, first, again)
		}
		t.Logf("room for %d tasks", first)
	})
}
