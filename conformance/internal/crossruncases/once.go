package crossruncases

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// stepRepeated repeats a step under its id: after its success, after each of its writes was lost,
// and after later changes.
func stepRepeated(t harness.T, e *harness.Env, m stepMode) {
	ctx, another := t.Context(), m.lossless(e.Reopen(t))
	losses := []kit.Loss{kit.ReplyLost, kit.RequestLost}
	for _, by := range losses[:e.Scaled(t, "ways to lose a write", 1, len(losses))] {
		hit := true
		for n := 1; hit && n < 20; n++ {
			what := fmt.Sprintf("write %d lost, loss %d", n, by)
			p := newPair(t, e, fmt.Sprintf("%d-%d", n, by), false)
			lead, other := p.step("step")
			lead.ID = runstore.NewBatchID()
			left := n
			hit = false
			s := m.on(e.Store, func() kit.Loss { // one write is lost, and the process lives on
				if left--; left == 0 {
					hit = true
					return by
				}
				return kit.NothingLost
			})
			first, err := crossrun.Commit(ctx, s, lead, other)
			if err != nil {
				if first, err = crossrun.Commit(ctx, s, lead, other); err != nil {
					t.Fatalf("%s: the repeat: %v", what, err)
				}
			}
			kit.Equal(t, what+": seqs on the lead", [2]runstore.Seq{first.Lead.FirstSeq, first.Lead.LastSeq}, [2]runstore.Seq{2, 3})
			kit.Equal(t, what+": versions on the lead", first.Lead.Versions, []runstore.Version{2, 2, 2, 0})
			p.checkAtomic(t, e, what, "step", nil)
			// The result is remembered, whoever holds the lease and whatever has become of the
			// name. A remembered result grants no authority.
			lease, _ := p.takeOver(t, m.lossless(e.Store), "new")
			e.Append(t, e.Store, lease, "went on")
			p.freeName(t, e)
			if n == 1 && e.Scaled(t, "rounds in which the other run forgets", 0, 1) > 0 {
				kit.EvictBatchIDs(t, e, p.other) // only the lead's memory counts
			}
			before := p.dump(t, e.Store)
			again, err := crossrun.Commit(ctx, another, lead, other)
			if err != nil || !again.Lead.Replayed {
				t.Errorf("%s: a later repeat: %+v, %v; want the first result", what, again, err)
			}
			again.Lead.Replayed = first.Lead.Replayed
			kit.Equal(t, what+": the later repeat's result", again.Lead, first.Lead)
			kit.CheckUnchanged(t, what+": a later repeat", before, p.dump(t, e.Store))
			lead.ID = runstore.NewBatchID()
			_, err = crossrun.Commit(ctx, m.lossless(e.Store), lead, other)
			harness.Refused(t, what+": the same step under another id", err, runstore.ErrFenced)
		}
	}
}

// stepForgotten completes steps after the other run has evicted all batch ids from the time when
// their drivers died.
func stepForgotten(t harness.T, e *harness.Env, m stepMode) {
	successor := m.lossless(e.Reopen(t))
	rounds := []bool{false, true}
	for _, taken := range rounds[:e.Scaled(t, "rounds, the last with a step that is refused", 1, len(rounds))] {
		type cutStep struct {
			pair
			driverErr error
			named     bool // the batch was applied to the other run before the driver died
		}
		var steps []cutStep
		other := runstore.RunID(fmt.Sprintf("other-%t", taken))
		kit.SeedFixture(t, e, other)
		hit := true
		for n := 1; hit && n < 20; n++ {
			p := newPairWith(t, e, fmt.Sprintf("%d-%t", n, taken), other, taken)
			lead, batch := p.step(p.tag())
			_, driverErr := crossrun.Commit(t.Context(), m.on(e.Store, cutAt(n, kit.ReplyLost, &hit)), lead, batch)
			steps = append(steps, cutStep{p, driverErr, p.applications(t, e.Store, p.tag())[1] == 1})
		}
		for _, c := range steps {
			c.freeName(t, e) // the guard holds again, or for the first time
		}
		kit.EvictBatchIDs(t, e, other)
		for i, c := range steps {
			what := fmt.Sprintf("cut after write %d, taken %t", i+1, taken)
			c.takeOver(t, successor, "new")
			if applied := c.applications(t, e.Store, c.tag())[0] == 1; c.named && !applied {
				t.Errorf("%s: the step was on the other run, and is on neither", what)
			}
		}
		for i, c := range steps {
			c.checkAtomic(t, e, fmt.Sprintf("cut after write %d, taken %t", i+1, taken), c.tag(), c.driverErr)
		}
	}
}

// stepErrors loses the writes of a step one after the other, and compares the driver's result with
// the state after its recovery.
func stepErrors(t harness.T, e *harness.Env, m stepMode) {
	ctx := t.Context()
	for _, taken := range []bool{false, true} {
		eachLostWrite(t, e, func(n int, by kit.Loss, hit *bool) {
			what := fmt.Sprintf("write %d lost, loss %d, taken %t", n, by, taken)
			p := newPair(t, e, fmt.Sprintf("%d-%d-%t", n, by, taken), taken)
			lead, other := p.step("step")
			left := n
			*hit = false
			s := m.on(e.Store, func() kit.Loss {
				if left--; left == 0 {
					*hit = true
					return by
				}
				return kit.NothingLost
			})
			_, driverErr := crossrun.Commit(ctx, s, lead, other)
			if driverErr != nil && runstore.OutcomeOf(driverErr) == runstore.Unknown && !errors.Is(driverErr, kit.ErrCut) {
				t.Errorf("%s: the error %v does not tell what stood in the way", what, driverErr)
			}
			if taken && driverErr == nil {
				t.Errorf("%s: a step was acknowledged whose guard does not hold", what)
			}
			before := p.applications(t, e.Store, "step")
			if _, err := crossrun.Recover(ctx, m.lossless(e.Store), p.lease.Fence()); err != nil {
				t.Errorf("%s: recover: %v", what, err)
			}
			applied := p.checkAtomic(t, e, what, "step", driverErr)
			if driverErr == nil && before != [2]int{1, 1} || applied && taken {
				t.Errorf("%s: the driver got %v, the step was there %d times, and is now: %t", what, driverErr, before, applied)
			}
			e.Append(t, e.Store, p.lease, "the lead is as usable as before")
		})
	}
}

// stepGone purges the other run while a step is in progress.
func stepGone(t harness.T, e *harness.Env, m stepMode) {
	successor := m.lossless(e.Reopen(t))
	for _, anew := range []bool{false, true} {
		eachLostWrite(t, e, func(n int, by kit.Loss, hit *bool) {
			what := fmt.Sprintf("cut at write %d, loss %d, made anew %t", n, by, anew)
			p := newPair(t, e, fmt.Sprintf("%d-%d-%t", n, by, anew), false)
			lead, other := p.step("step")
			_, driverErr := crossrun.Commit(t.Context(), m.on(e.Store, cutAt(n, by, hit)), lead, other)
			on := p.applications(t, e.Store, "step")
			b := runstore.NewBatch(p.other, runstore.Unguarded("test"))
			b.Purge = true
			kit.MustCommit(t, e.Store, b)
			if anew {
				e.Create(t, p.other)
			}
			lease, completed := p.takeOver(t, successor, "new")
			_, other = p.step("again")
			lead = runstore.NewBatch(p.lead, lease.Fence())
			lead.Append("test", []byte("again"))
			_, err := crossrun.Commit(t.Context(), m.lossless(e.Store), lead, other)
			if anew && err != nil || !anew && !errors.Is(err, runstore.ErrNotFound) {
				t.Errorf("%s: a step after that: %v", what, err)
			}
			if !anew {
				e.Create(t, p.other)
			}
			times := p.applications(t, e.Store, "step")
			if times[1] != 0 || times[0] != on[0] {
				t.Errorf("%s: the step is on the runs %d times, and was %d times before the purge", what, times, on)
			}
			if completed.Applied || driverErr == nil && times[0] != 1 {
				t.Errorf("%s: the driver got %v, its successor %+v; the step is on the lead %d times", what, driverErr, completed, times[0])
			}
			p.checkSwept(t, e, what)
		})
	}
}

// stepTransfers moves units between runs by drivers that preempt each other, lose writes and die.
func stepTransfers(t harness.T, e *harness.Env, m stepMode) {
	const accounts, drivers, rounds, units = 3, 3, 8, 100
	ctx := t.Context()
	random := kit.Seeded(t)
	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("account-", i)) }
	for i := range accounts {
		e.Create(t, id(i))
		kit.Put(t, e.Store, id(i), "units", 0, fmt.Sprint(units))
	}
	stores := kit.OpenHandles(t, e, drivers)
	reported := make([]map[string]runstore.Outcome, drivers)
	kit.RunConcurrently(t, drivers, func(i int) error {
		pick := random(i)
		reported[i] = map[string]runstore.Outcome{}
		for n := range rounds {
			s := m.on(stores[i], randomCuts(pick))
			from, to := id(pick.IntN(accounts)), id(pick.IntN(accounts))
			if from == to {
				continue
			}
			lease, _, err := crossrun.Acquire(ctx, s, kit.Preempting(from, runstore.Owner(fmt.Sprint("driver-", i)), "test"))
			if err != nil {
				continue
			}
			name := fmt.Sprintf("%d/%d", i, n)
			lead, err := unitsMoved(ctx, s, from, name, -1, lease.Fence())
			if err != nil {
				return err
			}
			other, err := unitsMoved(ctx, s, to, name, +1)
			if err != nil {
				return err
			}
			_, err = crossrun.Commit(ctx, s, lead, other)
			reported[i][name] = runstore.OutcomeOf(err)
		}
		return nil
	})
	sum, times := 0, map[string]int{}
	for i := range accounts {
		pair{lead: id(i)}.takeOver(t, m.lossless(e.Store), "last")
	}
	for i := range accounts {
		var has int
		if _, err := fmt.Sscan(string(kit.Record(t, e.Store, id(i), "units").Value), &has); err != nil {
			t.Fatalf("units: %v", err)
		}
		sum += has
		for _, event := range kit.Journal(t, e.Store, id(i)) {
			times[string(event.Data)]++
		}
		pair{lead: id(i), other: id(i)}.checkSwept(t, e, "transfers")
	}
	kit.Equal(t, "sum of the units", sum, accounts*units)
	for i := range reported {
		for name, outcome := range reported[i] {
			n := times[name]
			if n != 0 && n != 2 || outcome == runstore.Applied && n != 2 || outcome == runstore.NotApplied && n != 0 {
				t.Errorf("transfer %s was %v to its driver, and is %d times in the journals", name, outcome, n)
			}
		}
	}
}

// randomCuts returns the losses of a driver that dies, with probability 1/2, at one of its first
// seven writes.
func randomCuts(random *rand.Rand) func() kit.Loss {
	if random.IntN(2) == 0 {
		return func() kit.Loss { return kit.NothingLost }
	}
	var hit bool
	return cutAt(1+random.IntN(7), []kit.Loss{kit.RequestLost, kit.ReplyLost}[random.IntN(2)], &hit)
}
