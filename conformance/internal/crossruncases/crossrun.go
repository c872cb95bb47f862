package crossruncases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
)

// Cases returns the cases that prove the guarantees of steps over two runs (package crossrun):
// natively, where the store is a MultiCommitter, and by write-ahead intent on every store.
func Cases() []harness.Case {
	type theme struct {
		guarantee, name string
		run             func(t harness.T, e *harness.Env, m stepMode)
		doc             string
	}
	themes := []theme{
		{"I3", "a-fenced-driver-begins-no-step", stepFenced, `
			A driver's grant on the lead is preempted, and the driver begins a step, with an id and without: the
			other run's guard holds, fails, or its run is missing. Each attempt is ErrFenced, a definite error, and
			leaves both runs as they were. A step that consults the other run first, or writes ahead without the
			lead's fence, fails.`},
		{"I3", "a-zombie-in-any-gap-of-a-step-changes-nothing", stepZombie, `
			A driver pauses before each write of a step in turn. Its successor takes over the lead, completes the step
			that it finds and continues, and the other run's record is deleted; then the driver resumes. Neither run
			changes, and the step is on both runs or on none. A step whose late writes are guarded by a version alone
			is applied twice.`},
		{"I3", "a-refused-step-stays-refused-for-a-zombie", stepZombieRefused, `
			A driver pauses before each write of a step whose guard on the other run fails. Its successor takes over
			and finds the step refused, a change makes the guard hold, and the driver resumes. Neither run changes, and
			the step is on none. A step whose refusal is not recorded on the other run is made after all.`},
		{"I3", "a-zombie-does-not-write-the-lead-of-its-step", stepZombieLead, `
			A driver pauses before each write of a step and resumes between the takeover of its lead and the recovery
			by its successor. The lead stays as the takeover left it, and after the recovery the step is on both runs
			or on none, as the error said. A step that finishes or clears its intent without the lead's fence fails.`},
		{"I4", "a-step-over-two-runs-applies-whole", stepWhole, `
			A driver makes one step that writes everything a batch can on the lead and takes a record of the other
			run. Seqs, versions and records are as returned, the lead is exactly as a commit alone would leave it,
			and no helper record remains after a sweep. A step that reports another result, or leaves its traces,
			fails.`},
		{"I4", "a-refused-step-leaves-nothing-on-either-run", stepRefused, `
			A step's guard fails: version, seq or status on the lead or on the other run, or the other run is
			missing. The error is ErrConflict or ErrNotFound and names the caller's guard, both runs stay as they
			were, and a good step may use the same id. A step made as one commit after the other keeps the half that
			came first.`},
		{"I4", "a-step-cut-anywhere-is-whole-for-the-next-holder", stepCut, `
			A driver dies at each write of a step in turn, before the write or after it, whether or not the step's
			guard holds. A successor acquires the lead and completes: the step is on both runs or on none, the result
			that a dead driver got was true, and nothing is left to recover. A step that clears its intent too early
			stays half done.`},
		{"I4", "a-step-after-one-of-unknown-outcome-completes-it", stepAfterStep, `
			A step is cut short at each of its writes in turn, and the same holder makes another step. The second step
			applies, and the first is on both runs or on none, as its error said. A step whose intent overwrites that
			of the step before leaves the first step half done.`},
		{"I4", "a-step-under-way-keeps-others-from-its-records", stepKeepsOthersOff, `
			A driver dies before each write of a step in turn. While the step is in progress, a write that requires an
			idle lead, and another lead's step on this run, are ErrConflict; otherwise both apply. After a takeover the
			step is whole. A step that ignores a step in progress overwrites records that are about to change.`},
		{"I4", "steps-over-two-runs-keep-their-sum", stepTransfers, `
			Three drivers move units between three runs, preempt each other's leases, lose writes and die at random.
			After a final recovery the sum of the units is unchanged, and each transfer is in both journals or in none,
			as its error said. A step that is made in part, or twice, changes the sum.`},
		{"I8", "a-repeated-step-gets-the-first-result", stepRepeated, `
			A step loses each of its writes in turn and is repeated under its id: at once, and after a takeover, more
			events, and a change of the other run. Each repeat returns the first result and changes nothing; the same
			step under a new id is ErrFenced. A step that does not record its id on the lead is made twice.`},
		{"I8", "a-step-is-completed-once-though-its-ids-are-forgotten", stepForgotten, `
			Drivers die after each write of a step, the other run's record is deleted, and so many batches follow that
			the other run forgets every id. Successors complete the steps: each is on both runs or on none, and one
			that was on the other run stays made. A step that relies on remembered batch ids is made twice, or lost.`},
		{"I11", "an-error-of-a-step-is-true", stepErrors, `
			A driver loses each write of a step in turn and survives, whether or not the step's guard holds. After a
			recovery the step is there or not as the driver's error said, an unknown outcome carries its cause, and the
			lead is usable. A step that reports a lost reply as not applied fails.`},
		{"I11", "a-step-whose-other-run-is-gone-ends", stepGone, `
			A driver dies at each write of a step, the other run is purged, and in a second round created anew. A
			successor takes over, learns that the step was not applied, and leaves no helper record; a later step
			works, or is ErrNotFound where the run is gone. A step that waits for a purged run never ends.`},
		{"I12", "steps-have-the-same-limits", stepLimits, `
			Steps that purge, use a reserved key, lack a guard on the other run or exceed a limit are ErrInvalid or
			ErrTooLarge, name the field, and leave both runs as they were; the largest step allowed is made whole. A
			mode with limits of its own accepts a step that another store refuses in the middle.`},
	}
	var all []harness.Case
	for _, m := range []stepMode{byCommitMulti, byIntent} {
		for _, th := range themes {
			c := harness.Case{Guarantee: th.guarantee, Name: th.name + "-" + m.name, Doc: th.doc + " " + m.doc, Run: func(t harness.T, e *harness.Env) { th.run(t, e, m) }}
			c.Needs = []harness.Need{harness.NeedIntent}
			if m.native {
				c.Needs = []harness.Need{harness.NeedMulti}
			}
			all = append(all, c)
		}
	}
	all = append(all, harness.Case{Guarantee: "I4", Name: "a-step-outlasts-another-of-its-lead-by-intent", Needs: []harness.Need{harness.NeedIntent}, Run: func(t harness.T, e *harness.Env) {
		stepOfTwoCallers(t, e, byIntent)
	}, Doc: `
		While a driver makes a step, another caller under the same fence begins one with a third run, before the
		driver's first write or its second, and ends it before the driver reads what refused its write. The driver's
		step is made, and is ErrNotFound if its other run is missing. A step that is refused for one that has ended is
		a conflict that no read explains. The store's own CommitMulti is hidden.`})
	all = append(all, harness.Case{Guarantee: "I8", Name: "a-repeat-of-a-step-that-ends-meanwhile-by-intent", Needs: []harness.Need{harness.NeedIntent}, Run: func(t harness.T, e *harness.Env) {
		stepEndsBeforeItsRepeat(t, e, byIntent)
	}, Doc: `
		A step that guards nothing it writes is cut short and repeated under its id. Another caller completes it
		before a write of the repeat, each in turn. The repeat returns the first result, and the step is made once on
		each run. A repeat that asks for the first result too early makes the step twice on the other run. The
		store's own CommitMulti is hidden.`})
	return append(all, harness.Case{Guarantee: "I4", Name: "a-step-on-a-full-run-is-whole-by-intent", Needs: []harness.Need{harness.NeedIntent}, Run: func(t harness.T, e *harness.Env) {
		stepFull(t, e, byIntent)
	}, Doc: `
		A run is filled with records until it has room for few more, first as the lead and then as the other run
		of steps that each add some 5 KB. Each step is made on both runs, or refused with ErrTooLarge and on
		none, and works again once there is room. A store whose intent fits while the step's last write does not
		leaves half a step. The store's own CommitMulti is hidden.`})
}

// stepMode is a way to make a step over two runs.
type stepMode struct {
	name   string
	native bool
	doc    string // ends the Doc of a case
}

var (
	byCommitMulti = stepMode{"natively", true, "The store applies both batches in one CommitMulti."}
	byIntent      = stepMode{"by-intent", false, "The step is made by a write-ahead intent, with the store's own CommitMulti hidden."}
)

// on returns s as a driver sees it over a network that loses writes as next says. By intent, the
// result is never a MultiCommitter.
func (m stepMode) on(s runstore.RunStore, next func() kit.Loss) runstore.RunStore {
	l := kit.Lossy{RunStore: s, Next: next}
	if m.native {
		return lossyMulti{l, kit.Capability[runstore.MultiCommitter](s)}
	}
	return l
}

// lossless returns s as a driver sees it over a network that loses nothing.
func (m stepMode) lossless(s runstore.RunStore) runstore.RunStore {
	return m.on(s, func() kit.Loss { return kit.NothingLost })
}

// lossyMulti is a lossy store that is a MultiCommitter.
type lossyMulti struct {
	kit.Lossy
	multi runstore.MultiCommitter
}

// CommitMulti commits several batches through the network.
func (l lossyMulti) CommitMulti(ctx context.Context, batches []runstore.Batch) ([]runstore.Committed, error) {
	return kit.Through(l.Lossy, "commit", "", func() ([]runstore.Committed, error) { return l.multi.CommitMulti(ctx, batches) })
}

// cutAt returns the losses of a driver whose process dies at its nth write: the writes before pass,
// the nth is lost as by says, and all later ones are lost. It sets hit when the nth write is
// reached.
func cutAt(n int, by kit.Loss, hit *bool) func() kit.Loss {
	*hit = false
	return func() kit.Loss {
		n--
		switch {
		case n > 0:
			return kit.NothingLost
		case n == 0:
			*hit = true
			return by
		default:
			return kit.RequestLost
		}
	}
}

// pair is a leading run and the other run of a step.
type pair struct {
	lead, other runstore.RunID
	lease       runstore.Lease
	// name is the other run's record that the step takes.
	name runstore.RecordKey
}

// newPair creates two runs with fixtures. The lead is held by "old". If taken, the record of the
// other run that the step wants to create exists already.
func newPair(t harness.T, e *harness.Env, tag string, taken bool) pair {
	t.Helper()
	other := runstore.RunID("other-" + tag)
	kit.SeedFixture(t, e, other)
	return newPairWith(t, e, tag, other, taken)
}

// newPairWith is newPair with an existing other run.
func newPairWith(t harness.T, e *harness.Env, tag string, other runstore.RunID, taken bool) pair {
	t.Helper()
	p := pair{lead: runstore.RunID("lead-" + tag), other: other, name: runstore.RecordKey("name-" + tag)}
	kit.MustRelease(t, e.Store, kit.SeedFixture(t, e, p.lead))
	p.lease = e.Acquire(t, e.Store, p.lead, "old")
	if taken {
		kit.Put(t, e.Store, p.other, p.name, 0, "somebody")
	}
	return p
}

// step returns the batches of a step that creates the other run's name record, if it is absent.
func (p pair) step(tag string) (lead, other runstore.Batch) {
	lead = runstore.NewBatch(p.lead, p.lease.Fence(), runstore.AtVersion("a", 1), runstore.AtSeq(2), runstore.InStatus(1))
	kit.WriteEverything(&lead.Writes, tag, 5)
	other = runstore.NewBatch(p.other, runstore.AtVersion(p.name, 0))
	other.Append("named", []byte(tag+"/first"))
	other.Put(p.name, []byte(tag), runstore.Place{Index: "queue-b", At: runstore.After(0)})
	return lead, other
}

// freeName deletes the other run's name record, if it exists, so that the guard of the step holds.
func (p pair) freeName(t harness.T, e *harness.Env) {
	t.Helper()
	if rec := kit.Record(t, e.Store, p.other, p.name); rec.Version != 0 {
		kit.Remove(t, e.Store, p.other, p.name, rec.Version)
	}
}

// takeOver preempts the lead and completes the step in progress, if any.
func (p pair) takeOver(t harness.T, s runstore.RunStore, owner runstore.Owner) (runstore.Lease, crossrun.Completed) {
	t.Helper()
	lease, completed, err := crossrun.Acquire(t.Context(), s, kit.Preempting(p.lead, owner, "test"))
	if err != nil {
		t.Fatalf("take over %q: %v", p.lead, err)
	}
	return lease.Lease, completed
}

// applications returns how often a step was applied to the lead and to the other run.
func (p pair) applications(t harness.T, s runstore.RunStore, tag string) (times [2]int) {
	t.Helper()
	for i, id := range []runstore.RunID{p.lead, p.other} {
		for _, event := range kit.Journal(t, s, id) {
			if string(event.Data) == tag+"/first" {
				times[i]++
			}
		}
	}
	return times
}

// checkAtomic fails the case unless the step was applied once to both runs or to neither, in
// agreement with driverErr, the driver's result, and no record of the protocol is left.
func (p pair) checkAtomic(t harness.T, e *harness.Env, what, tag string, driverErr error) (applied bool) {
	t.Helper()
	times := p.applications(t, e.Store, tag)
	if times != [2]int{0, 0} && times != [2]int{1, 1} {
		t.Errorf("%s: the step was made %d times on the lead and %d times on the other run", what, times[0], times[1])
	}
	outcome := runstore.OutcomeOf(driverErr)
	if outcome == runstore.Applied && times[0] != 1 || outcome == runstore.NotApplied && times != [2]int{} {
		t.Errorf("%s: the driver got %v (%v), and the step was made %d times", what, outcome, driverErr, times)
	}
	p.checkSwept(t, e, what)
	return times[0] > 0
}

// checkSwept fails the case if records of package crossrun are left after a sweep.
func (p pair) checkSwept(t harness.T, e *harness.Env, what string) {
	t.Helper()
	if _, err := crossrun.Sweep(t.Context(), e.Store, p.other); err != nil {
		t.Errorf("%s: sweep: %v", what, err)
	}
	for _, id := range []runstore.RunID{p.lead, p.other} {
		for _, rec := range kit.MustCollect(t, "records", runstore.Records(t.Context(), e.Store, id, crossrun.Reserved)) {
			t.Errorf("%s: record %q of %q was left behind", what, rec.Key, id)
		}
	}
}

// dump returns the dumps of both runs.
func (p pair) dump(t harness.T, s runstore.RunStore) string {
	t.Helper()
	return kit.DumpAll(t, s, []runstore.RunID{p.lead, p.other}, kit.AllIndexes...)
}

// dumpWithoutMarks returns the dumps of both runs without the other run's marks, which attempts at
// steps create and delete.
func (p pair) dumpWithoutMarks(t harness.T, s runstore.RunStore) string {
	t.Helper()
	lines := strings.SplitAfter(p.dump(t, s), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, fmt.Sprintf("record \"%smark/", crossrun.Reserved))
	}), "")
}

func stepWhole(t harness.T, e *harness.Env, m stepMode) {
	p := newPair(t, e, "1", false)
	lead, other := p.step("step")
	result, err := crossrun.Commit(t.Context(), m.lossless(e.Reopen(t)), lead, other)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	kit.Equal(t, "seqs on the lead", [2]runstore.Seq{result.Lead.FirstSeq, result.Lead.LastSeq}, [2]runstore.Seq{2, 3})
	kit.Equal(t, "versions on the lead", result.Lead.Versions, []runstore.Version{2, 2, 2, 0})
	kit.Equal(t, "seqs on the other run", [2]runstore.Seq{result.Other.FirstSeq, result.Other.LastSeq}, [2]runstore.Seq{2, 2})
	name := kit.Record(t, e.Store, p.other, p.name)
	kit.Equal(t, "versions on the other run", result.Other.Versions, []runstore.Version{name.Version})
	kit.Equal(t, "the other run's record", string(name.Value), "step")
	// The lead is as one commit would have left it.
	twin := newPair(t, e, "2", false)
	alone, _ := twin.step("step")
	kit.Equal(t, "the lead's result", slices.Clone(result.Lead.Versions), kit.MustCommit(t, e.Store, alone).Versions)
	kit.CheckUnchanged(t, "a step beside a commit of the lead alone", strings.ReplaceAll(kit.Dump(t, e.Store, twin.lead, kit.AllIndexes...), string(twin.lead), "lead"),
		strings.ReplaceAll(kit.Dump(t, e.Store, p.lead, kit.AllIndexes...), string(p.lead), "lead"))
	before := p.dump(t, e.Store)
	p.checkAtomic(t, e, "a step", "step", nil)
	kit.CheckUnchanged(t, "a sweep after a step", before, p.dump(t, e.Store))
}

func stepRefused(t harness.T, e *harness.Env, m stepMode) {
	ctx := t.Context()
	p := newPair(t, e, "1", false)
	s := m.lossless(e.Store)
	before := p.dump(t, e.Store)
	for _, test := range []struct {
		name   string
		change func(lead, other *runstore.Batch)
		want   error
	}{
		{"a version of the lead", func(lead, _ *runstore.Batch) { lead.Require(runstore.AtVersion("b", 9)) }, runstore.ErrConflict},
		{"the lead's seq", func(lead, _ *runstore.Batch) {
			*lead = runstore.NewBatch(p.lead, p.lease.Fence(), runstore.AtSeq(9))
		}, runstore.ErrConflict},
		{"the lead's status", func(lead, _ *runstore.Batch) {
			*lead = runstore.NewBatch(p.lead, p.lease.Fence(), runstore.InStatus(9))
		}, runstore.ErrConflict},
		{"a version of the other run", func(_, other *runstore.Batch) { other.Require(runstore.AtVersion("b", 9)) }, runstore.ErrConflict},
		{"the first of several versions", func(_, other *runstore.Batch) {
			*other = runstore.NewBatch(p.other, runstore.AtVersion("absent", 3), runstore.AtVersion("b", 1))
			other.Put("b", []byte("refused"))
		}, runstore.ErrConflict},
		{"the other run's seq", func(_, other *runstore.Batch) { other.Require(runstore.AtSeq(9)) }, runstore.ErrConflict},
		{"the other run's status", func(_, other *runstore.Batch) { other.Require(runstore.InStatus(9)) }, runstore.ErrConflict},
		{"a missing run", func(_, other *runstore.Batch) {
			*other = runstore.NewBatch("missing", runstore.AtVersion("name", 0))
		}, runstore.ErrNotFound},
	} {
		ids := []runstore.BatchID{"an id", ""}
		for _, id := range ids[:e.Scaled(t, "ids, none among them", 1, len(ids))] {
			lead, other := p.step("refused")
			lead.ID = id
			test.change(&lead, &other)
			_, err := crossrun.Commit(ctx, s, lead, other)
			harness.Refused(t, test.name, err, test.want)
			var conflict *runstore.ConflictError
			if test.want == runstore.ErrConflict && (!errors.As(err, &conflict) || strings.HasPrefix(string(conflict.Key), string(crossrun.Reserved))) {
				t.Errorf("%s: the error %v does not tell which of the caller's guards did not hold", test.name, err)
			}
			kit.CheckUnchanged(t, "a step refused for "+test.name, before, p.dump(t, e.Store))
		}
	}
	// The runs are as usable as before, and the id of a refused step can be used again.
	lead, other := p.step("step")
	lead.ID = "an id"
	_, err := crossrun.Commit(ctx, s, lead, other)
	if !p.checkAtomic(t, e, "a good step after the refused ones", "step", err) {
		t.Errorf("a good step after the refused ones: %v", err)
	}
}

// stepCut makes the driver die at each write of a step, before the write and after it.
func stepCut(t harness.T, e *harness.Env, m stepMode) {
	successor := m.lossless(e.Reopen(t))
	for _, taken := range []bool{false, true} {
		eachLostWrite(t, e, func(n int, by kit.Loss, hit *bool) {
			what := fmt.Sprintf("cut at write %d, loss %d, taken %t", n, by, taken)
			p := newPair(t, e, fmt.Sprintf("%d-%d-%t", n, by, taken), taken)
			lead, other := p.step("step")
			_, driverErr := crossrun.Commit(t.Context(), m.on(e.Store, cutAt(n, by, hit)), lead, other)
			lease, completed := p.takeOver(t, successor, "new")
			applied := p.checkAtomic(t, e, what, "step", driverErr)
			if taken && applied {
				t.Errorf("%s: a step was made whose guard did not hold", what)
			}
			if completed.ID != "" && completed.Applied != applied {
				t.Errorf("%s: the successor found that the step was applied: %t", what, completed.Applied)
			}
			// Nothing is left to complete, and the lead can be driven on.
			before := p.dump(t, e.Store)
			if again, err := crossrun.Recover(t.Context(), successor, lease.Fence()); err != nil || again.ID != "" {
				t.Errorf("%s: recover again: %+v, %v; want nothing", what, again, err)
			}
			kit.CheckUnchanged(t, what+": recovering again", before, p.dump(t, e.Store))
			e.Append(t, successor, lease, "went on")
		})
	}
}

// stepAfterStep lets the holder make another step after one of its own was cut short. Nothing of
// the first step may be lost.
func stepAfterStep(t harness.T, e *harness.Env, m stepMode) {
	s := m.lossless(e.Reopen(t))
	eachLostWrite(t, e, func(n int, by kit.Loss, hit *bool) {
		what := fmt.Sprintf("cut at write %d, loss %d", n, by)
		p := newPair(t, e, fmt.Sprintf("%d-%d", n, by), false)
		lead, other := p.step("first")
		_, driverErr := crossrun.Commit(t.Context(), m.on(e.Store, cutAt(n, by, hit)), lead, other)
		lead = runstore.NewBatch(p.lead, p.lease.Fence())
		lead.Append("test", []byte("second/first"))
		other = runstore.NewBatch(p.other, runstore.AtVersion("b", 1))
		other.Append("test", []byte("second/first"))
		other.Put("b", []byte("second"))
		_, err := crossrun.Commit(t.Context(), s, lead, other)
		if err != nil {
			t.Errorf("%s: the second step: %v", what, err)
		}
		p.checkAtomic(t, e, what, "first", driverErr)
		p.checkAtomic(t, e, what, "second", err)
	})
}

// eachLostWrite calls scenario for every write of a step, lost before it is applied and after,
// until scenario finds that the step has fewer writes.
func eachLostWrite(t harness.T, e *harness.Env, scenario func(n int, by kit.Loss, hit *bool)) {
	t.Helper()
	losses := []kit.Loss{kit.ReplyLost, kit.RequestLost}
	for _, by := range losses[:e.Scaled(t, "ways to lose a write", 1, len(losses))] {
		hit := true
		for n := 1; hit && n < 20; n++ {
			scenario(n, by, &hit)
		}
	}
}
