package cases

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// flightCases keep the zombie's write in flight during the takeover. No fence check that is a step
// of its own can pass them.
func flightCases() []harness.Case {
	stall := []harness.Need{harness.NeedBlockWriters}
	return []harness.Case{
		{Guarantee: "I3", Name: "write-in-flight-at-a-preempt-loses-or-comes-first", Needs: stall, Overtakes: true,
			Run: func(t harness.T, e *harness.Env) { inFlight(t, e, false) }, Doc: `
			Six handles commit under a live lease and are blocked at the engine; meanwhile another handle preempts.
			Each commit is either in the journal before the takeover's own event or ErrFenced without a trace, and
			nothing of the old grant appears after AcquireLease has returned. A store that reads the fence in one step
			and writes in another applies a write after the takeover.`},
		{Guarantee: "I3", Name: "write-in-flight-at-a-takeover-loses-or-comes-first", Needs: stall, Overtakes: true,
			Run: func(t harness.T, e *harness.Env) { inFlight(t, e, true) }, Doc: `
			Six handles commit under a lease that has expired and are blocked at the engine; meanwhile another handle
			takes over without a preempt. Each commit is either in the journal before the takeover's event or ErrFenced
			without a trace, and nothing of the old grant appears after AcquireLease has returned. A store that checks
			the fence of a late holder before it takes the run's lock fails.`},
		{Guarantee: "I3", Name: "renewal-in-flight-at-a-preempt-changes-nothing-after-it", Needs: stall, Overtakes: true,
			Run: func(t harness.T, e *harness.Env) { grantInFlight(t, e, "renewal") }, Doc: `
			A holder's renewal is blocked at the engine while another handle preempts. Whatever the renewal returns,
			success or ErrFenced, the run then names the new holder with the new grant's expiry, and the new holder
			commits. A store that writes a renewed expiry without comparing the grant in the same step lengthens or
			replaces the new grant.`},
		{Guarantee: "I3", Name: "release-in-flight-at-a-preempt-changes-nothing-after-it", Needs: stall, Overtakes: true,
			Run: func(t harness.T, e *harness.Env) { grantInFlight(t, e, "release") }, Doc: `
			A holder's release is blocked at the engine while another handle preempts. Whatever the release returns,
			success or ErrFenced, the run then names the new holder until the new grant's expiry, and the new holder
			commits. A store that clears the holder without comparing the grant in the same step frees the new holder's
			lease.`},
		{Guarantee: "I3", Name: "storm-of-writers-ends-at-a-preempt",
			Run: func(t harness.T, e *harness.Env) { storm(t, e, false) }, Doc: `
			Four handles commit under one live lease as fast as they can, and another handle preempts, round after
			round. Every writer ends with ErrFenced, and the journal gains nothing of the old token after the preempt
			has returned. A store that checks the fence outside the step that writes lets a commit of the old holder
			slip in between.`},
		{Guarantee: "I3", Name: "storm-of-late-writers-ends-at-a-takeover",
			Run: func(t harness.T, e *harness.Env) { storm(t, e, true) }, Doc: `
			Four handles commit under an expired lease as fast as they can, and another handle takes over, round
			after round. Every writer ends with ErrFenced, and the journal gains nothing of the old token after the
			takeover has returned. A store that caches the outcome of a fence check, or checks it before the write,
			lets a late holder write on.`},
	}
}

// meanwhile starts the writers while the engine blocks writers, and change once one of the writers
// is blocked. It unblocks all once change has had ArrivalTime to reach the engine.
func meanwhile(t harness.T, e *harness.Env, writers, change func()) {
	t.Helper()
	blocked := kit.BlockWriters(t, e)
	wrote, changed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(wrote)
		panics.Guarded(t, writers)()
	}()
	blocked.Await(t, wrote)
	go func() {
		defer close(changed)
		panics.Guarded(t, change)()
	}()
	kit.WaitAtMost(t, changed, kit.ArrivalTime)
	blocked.Resume()
	<-wrote
	<-changed
}

// inFlight lets the engine choose the order of the holder's writes and the takeover.
func inFlight(t harness.T, e *harness.Env, expired bool) {
	const writers = 6
	handles := kit.OpenHandles(t, e, writers+1)
	successor := handles[writers]
	for round := range 3 {
		id := runstore.RunID(fmt.Sprintf("run-%d", round))
		e.Create(t, id)
		first := kit.Acquiring(id, "old", harness.TTL)
		next := kit.Preempting(id, "new", "test")
		if expired {
			first.TTL, next.Preempt = e.ShortTTL(), ""
		}
		old := kit.MustAcquire(t, e.Store, first)
		e.Append(t, e.Store, old, "begun")
		if expired {
			kit.Expire(t, e)
		}
		next.Writes.Append("test", []byte("taken over"))

		errs := make([]error, writers)
		var lease runstore.Granted
		var seen []runstore.Event
		var failed error
		meanwhile(t, e, func() {
			kit.Contend(writers, func(i int) {
				b := kit.Appending(old, fmt.Sprintf("zombie %d", i))
				b.Put(runstore.RecordKey(fmt.Sprintf("zombie %d", i)), nil)
				_, errs[i] = handles[i].Commit(t.Context(), b)
			})
		}, func() {
			if lease, failed = successor.AcquireLease(t.Context(), next); failed == nil {
				seen, failed = successor.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
			}
		})
		if failed != nil {
			t.Fatalf("round %d: takeover: %v", round, failed)
		}
		e.Append(t, successor, lease.Lease, "went on")
		run := e.Get(t, id)
		_, err := handles[0].Commit(t.Context(), kit.Appending(old, "later"))
		kit.CheckFenced(t, "a commit after all that", err, old, run)

		final := kit.Journal(t, e.Store, id)
		nothingAfter(t, fmt.Sprintf("round %d", round), final, seen, old, lease.Lease)
		places := map[string]int{}
		for _, event := range final {
			places[string(event.Data)]++
		}
		records, err := e.Store.ReadRecords(t.Context(), id, runstore.RecordQuery{Prefix: "zombie", Limit: 100})
		if err != nil {
			t.Fatalf("records: %v", err)
		}
		acknowledged := 0
		for i, err := range errs {
			name := fmt.Sprintf("zombie %d", i)
			if err == nil {
				acknowledged++
			} else {
				kit.CheckFenced(t, fmt.Sprintf("round %d: %s", round, name), err, old, runstore.Run{Token: run.Token, Holder: run.Holder})
			}
			if want := map[bool]int{true: 1}[err == nil]; places[name] != want {
				t.Errorf("round %d: the answer to %s was %v, and its event is there %d times", round, name, err, places[name])
			}
		}
		if len(records) != acknowledged {
			t.Errorf("round %d: %d records of the old holder, %d batches acknowledged", round, len(records), acknowledged)
		}
	}
}

// nothingAfter fails the case if the final journal holds a write of the old grant that the journal
// did not hold when the new grant was returned.
func nothingAfter(t harness.T, what string, final, seen []runstore.Event, old, lease runstore.Lease) {
	t.Helper()
	taken := false
	for i, event := range final {
		if string(event.Data) == "taken over" && event.Token == lease.Token {
			taken = true
			continue
		}
		mine := event.Token >= lease.Token || string(event.Data) == "went on"
		if taken && !mine {
			t.Errorf("%s: event %d, %q of token %v, comes after the takeover by token %v", what, event.Seq, event.Data, event.Token, lease.Token)
		}
		if !mine && i >= len(seen) {
			t.Errorf("%s: event %d, %q of token %v, appeared after token %v was granted; the journal then had %d events",
				what, event.Seq, event.Data, event.Token, lease.Token, len(seen))
		}
		if i > 0 && event.Token < final[i-1].Token {
			t.Errorf("%s: event %d is under token %v, after one under %v", what, event.Seq, event.Token, final[i-1].Token)
		}
	}
	if !taken {
		t.Errorf("%s: the takeover's own event is missing", what)
	}
}

func grantInFlight(t harness.T, e *harness.Env, kind string) {
	former, successor := e.Reopen(t), e.Reopen(t)
	for round := range 3 {
		id := runstore.RunID(fmt.Sprintf("run-%d", round))
		e.Create(t, id)
		old := e.Acquire(t, former, id, "old")
		var zombie, failed error
		var lease runstore.Granted
		var shown runstore.Run
		meanwhile(t, e, func() {
			if kind == "renewal" {
				zombie = kit.Renew(t, former, old, 4*harness.TTL)
			} else {
				zombie = kit.Release(t, former, old)
			}
		}, func() {
			if lease, failed = successor.AcquireLease(t.Context(), kit.Preempting(id, "new", "test")); failed == nil {
				shown, failed = successor.GetRun(t.Context(), id)
			}
		})
		if failed != nil {
			t.Fatalf("round %d: takeover: %v", round, failed)
		}
		if zombie != nil {
			harness.Refused(t, fmt.Sprintf("round %d: %s in flight", round, kind), zombie, runstore.ErrFenced)
		}
		run := e.Get(t, id)
		if kit.HolderText(run.Holder) != kit.HolderText(shown.Holder) || run.Holder.Owner != "new" || run.Token != old.Token+1 || !run.ExpiresAt.Equal(lease.ExpiresAt) {
			t.Errorf("round %d: a %s in flight (answer: %v) left the holder %s until %v, want new until %v",
				round, kind, zombie, kit.HolderText(run.Holder), run.ExpiresAt, lease.ExpiresAt)
		}
		_, err := former.AcquireLease(t.Context(), kit.Acquiring(id, "old", harness.TTL))
		kit.CheckLeaseHeld(t, "acquire by the former holder", err, lease.Lease, harness.TTL)
		e.Append(t, successor, lease.Lease, "the new grant works")
	}
}

func storm(t harness.T, e *harness.Env, expired bool) {
	const writers = 4
	rounds := 6
	if expired {
		rounds = 3
	}
	rounds = e.Scaled(t, "rounds", 1, rounds)
	e.Create(t, "run")
	handles := kit.OpenHandles(t, e, writers)
	successor := e.Reopen(t)
	lease := kit.MustAcquire(t, e.Store, kit.Acquiring("run", "holder-0", harness.TTL))
	for round := range rounds {
		if expired {
			kit.MustRelease(t, e.Store, lease)
			lease = kit.MustAcquire(t, e.Store, kit.Acquiring("run", "late", e.ShortTTL()))
			kit.Expire(t, e)
		}
		old := lease
		var writing sync.WaitGroup
		var taken atomic.Bool   // set once the takeover has returned
		var warm sync.WaitGroup // done once every writer has committed three times or ended
		for i, s := range handles {
			warm.Add(1)
			writing.Go(panics.Guarded(t, func() {
				started := sync.OnceFunc(warm.Done)
				defer started()
				for n := 0; ; n++ {
					if n == 3 {
						started()
					}
					late := taken.Load()
					_, err := s.Commit(t.Context(), kit.Appending(old, fmt.Sprintf("%d/%d", old.Token, i)))
					if err != nil {
						if !errors.Is(err, runstore.ErrFenced) {
							t.Errorf("round %d: a writer of token %v got %v, want ErrFenced", round, old.Token, err)
						}
						return
					}
					if late { // otherwise a store that lets zombies write would never stop
						t.Errorf("round %d: a commit under token %v, sent after the takeover, was not refused", round, old.Token)
						return
					}
				}
			}))
		}
		warm.Wait()
		next := kit.Preempting("run", runstore.Owner(fmt.Sprintf("holder-%d", round+1)), "test")
		if expired {
			next.Preempt = ""
		}
		next.Writes.Append("test", []byte("taken over"))
		lease = kit.MustAcquire(t, successor, next)
		seen := kit.Journal(t, successor, "run")
		e.Append(t, successor, lease, "went on")
		taken.Store(true)
		writing.Wait()
		nothingAfter(t, fmt.Sprintf("round %d", round), kit.Journal(t, e.Store, "run"), seen, old, lease)
		if t.Failed() {
			return
		}
	}
}
