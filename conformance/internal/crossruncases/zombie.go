package crossruncases

import (
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// stepFenced checks that a driver whose grant has ended begins no step, whatever the state of the
// other run.
func stepFenced(t harness.T, e *harness.Env, m stepMode) {
	p := newPair(t, e, "1", false)
	p.takeOver(t, m.lossless(e.Store), "new")
	run := e.Get(t, p.lead)
	s := m.lossless(e.Reopen(t))
	before := p.dump(t, e.Store)
	for _, other := range []struct {
		name  string
		batch func() runstore.Batch
	}{
		{"a free name", func() runstore.Batch { _, b := p.step("zombie"); return b }},
		{"a guard that does not hold", func() runstore.Batch {
			b := runstore.NewBatch(p.other, runstore.AtVersion("a", 9))
			b.Put("a", []byte("zombie"))
			return b
		}},
		{"a missing run", func() runstore.Batch {
			b := runstore.NewBatch("missing", runstore.AtVersion("a", 0))
			b.Put("a", []byte("zombie"))
			return b
		}},
	} {
		for _, id := range []runstore.BatchID{"", "an id"} {
			lead, _ := p.step("zombie")
			lead.ID = id
			_, err := crossrun.Commit(t.Context(), s, lead, other.batch())
			what := fmt.Sprintf("a zombie's step with id %q and %s", id, other.name)
			kit.CheckFenced(t, what, err, p.lease, run)
			if runstore.OutcomeOf(err) != runstore.NotApplied {
				t.Errorf("%s: the error %v leaves the outcome open", what, err)
			}
			kit.CheckUnchanged(t, what, before, p.dump(t, e.Store))
		}
	}
}

// stepZombie pauses a driver before each write of a step. The driver resumes after its successor
// has completed the step and written further, and after the name record was deleted. In a second
// round the other run was also swept and has evicted all earlier batch ids.
func stepZombie(t harness.T, e *harness.Env, m stepMode) { zombieSteps(t, e, m, false) }

// stepZombieRefused is stepZombie with a step whose guard fails until the successor has recorded
// the refusal.
func stepZombieRefused(t harness.T, e *harness.Env, m stepMode) { zombieSteps(t, e, m, true) }

// zombieSteps pauses a driver before each write of a step, lets the successors of all these drivers
// take over and continue, and then resumes the drivers. taken makes the guard of each step fail.
func zombieSteps(t harness.T, e *harness.Env, m stepMode, taken bool) {
	former, successor := e.Reopen(t), m.lossless(e.Reopen(t))
	rounds := []bool{false, true}
	for _, forgets := range rounds[:e.Scaled(t, "rounds, the last on a run that remembers no batch from before", 1, len(rounds))] {
		other := runstore.RunID(fmt.Sprintf("other-%t", forgets))
		kit.SeedFixture(t, e, other)
		var zombies []pausedDriver
		for n := 1; n < 20; n++ {
			p := newPairWith(t, e, fmt.Sprintf("%d-%t", n, forgets), other, taken)
			zombies = append(zombies, pauseBeforeWrite(t, former, m, p, n))
			if zombies[n-1].over {
				break
			}
		}
		for _, z := range zombies {
			lease, _ := z.takeOver(t, successor, "new")
			if applied := z.applications(t, e.Store, z.tag()); taken && applied != [2]int{} {
				t.Errorf("%s: a step was made whose guard did not hold", z.what)
			}
			b := runstore.NewBatch(z.lead, lease.Fence())
			b.Append("test", []byte("went on"))
			b.Put("a", []byte("went on"))
			kit.MustCommit(t, successor, b)
			z.freeName(t, e)
		}
		if forgets {
			kit.EvictBatchIDs(t, e, other)
			zombies[0].checkSwept(t, e, "all paused steps")
		}
		driverErr := make([]error, len(zombies))
		for i, z := range zombies {
			what := fmt.Sprintf("%s, forgotten %t", z.what, forgets)
			before := z.dumpWithoutMarks(t, e.Store)
			driverErr[i] = z.wake()
			kit.CheckUnchanged(t, what+": a zombie that woke up", before, z.dumpWithoutMarks(t, e.Store))
			if err := driverErr[i]; err != nil && !errors.Is(err, runstore.ErrFenced) && !errors.Is(err, runstore.ErrConflict) {
				t.Errorf("%s: the zombie got %v, want that it was fenced or its step refused", what, err)
			}
		}
		for i, z := range zombies { // last, because it sweeps
			z.checkAtomic(t, e, fmt.Sprintf("%s, forgotten %t", z.what, forgets), z.tag(), driverErr[i])
		}
	}
}

// pausedDriver is the driver of a step, paused within the step.
type pausedDriver struct {
	pair
	what string
	// over reports that the step has fewer writes: it ended, and no driver is paused.
	over bool
	// wake resumes the driver and returns its result.
	wake func() error
}

func (p pair) tag() string { return "step of " + string(p.lead) }

// pauseBeforeWrite starts a driver that makes a step, and pauses it before its nth write.
func pauseBeforeWrite(t harness.T, s runstore.RunStore, m stepMode, p pair, n int) pausedDriver {
	t.Helper()
	reached, resume, driverErr := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	writes := 0
	driver := m.on(s, func() kit.Loss {
		if writes++; writes == n {
			close(reached)
			select {
			case <-resume:
			case <-t.Context().Done():
			}
		}
		return kit.NothingLost
	})
	go func() {
		lead, other := p.step(p.tag())
		driverErr <- panics.Caught(func() error {
			_, err := crossrun.Commit(t.Context(), driver, lead, other)
			return err
		})
	}()
	select {
	case <-reached:
		return pausedDriver{pair: p, what: fmt.Sprintf("paused before write %d", n), wake: func() error {
			close(resume)
			return <-driverErr
		}}
	case err := <-driverErr:
		return pausedDriver{pair: p, what: "paused after the last write", over: true, wake: func() error { return err }}
	}
}

// stepZombieLead resumes the driver between the takeover of its lead and the completion of the
// step. The driver may still apply its step's batch to the other run, as it was entitled to while
// it held the lead; only the successor may write the lead.
func stepZombieLead(t harness.T, e *harness.Env, m stepMode) {
	former, successor := e.Reopen(t), m.lossless(e.Reopen(t))
	for _, taken := range []bool{false, true} {
		over := false
		for n := 1; !over && n < 20; n++ {
			z := pauseBeforeWrite(t, former, m, newPair(t, e, fmt.Sprintf("%d-%t", n, taken), taken), n)
			over = z.over
			what := fmt.Sprintf("%s, taken %t", z.what, taken)
			lease := kit.MustAcquire(t, successor, kit.Preempting(z.lead, "new", "test"))
			before := kit.Dump(t, e.Store, z.lead, kit.AllIndexes...)
			driverErr := z.wake()
			kit.CheckUnchanged(t, what+": a zombie that woke up after the takeover", before, kit.Dump(t, e.Store, z.lead, kit.AllIndexes...))
			if driverErr != nil && !errors.Is(driverErr, runstore.ErrFenced) && !(taken && errors.Is(driverErr, runstore.ErrConflict)) {
				t.Errorf("%s: the zombie got %v, want that it was fenced, or its step refused", what, driverErr)
			}
			if _, err := crossrun.Recover(t.Context(), successor, lease.Fence()); err != nil {
				t.Errorf("%s: recover: %v", what, err)
			}
			z.checkAtomic(t, e, what, z.tag(), driverErr)
			if _, err := crossrun.Recover(t.Context(), successor, z.lease.Fence()); err != nil {
				t.Errorf("%s: a zombie recovers where there is nothing to do: %v", what, err)
			}
		}
	}
}

// stepKeepsOthersOff checks that no other write changes the records of a step in progress: neither
// a write guarded by crossrun.Idle, nor a step of another lead.
func stepKeepsOthersOff(t harness.T, e *harness.Env, m stepMode) {
	ctx := t.Context()
	hit := false
	for n := 1; n < 20; n++ {
		p := newPair(t, e, fmt.Sprint(n), false)
		lead, other := p.step("step")
		_, driverErr := crossrun.Commit(ctx, m.on(e.Store, cutAt(n, kit.RequestLost, &hit)), lead, other)
		if !hit {
			break
		}
		underWay := kit.Record(t, e.Store, p.lead, crossrun.IntentKey).Version != 0
		unasked := runstore.NewBatch(p.lead, crossrun.Idle(), runstore.AtVersion("a", kit.Record(t, e.Store, p.lead, "a").Version))
		unasked.Put("a", []byte("meanwhile"))
		_, err := e.Store.Commit(ctx, unasked)
		if underWay {
			harness.Refused(t, fmt.Sprintf("cut at write %d: a write beside a step under way", n), err, runstore.ErrConflict)
		} else if err != nil {
			t.Errorf("cut at write %d: a write beside no step: %v", n, err)
		}
		third := runstore.RunID(fmt.Sprint("third-", n))
		lease := kit.SeedFixture(t, e, third)
		theirs := runstore.NewBatch(third, lease.Fence())
		theirs.Append("test", []byte("theirs"))
		ours := runstore.NewBatch(p.lead, runstore.AtVersion("b", kit.Record(t, e.Store, p.lead, "b").Version))
		ours.Put("b", []byte("theirs"))
		_, err = crossrun.Commit(ctx, m.lossless(e.Store), theirs, ours)
		var conflict *runstore.ConflictError
		if underWay && (!errors.As(err, &conflict) || conflict.Key != crossrun.IntentKey) {
			t.Errorf("cut at write %d: another lead's step got %v, want a conflict of %q", n, err, crossrun.IntentKey)
		} else if !underWay && err != nil {
			t.Errorf("cut at write %d: another lead's step beside no step: %v", n, err)
		}
		p.takeOver(t, m.lossless(e.Store), "new")
		p.checkAtomic(t, e, fmt.Sprintf("cut at write %d", n), "step", driverErr)
	}
}
