package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// write is one writing operation on a run that has decision 0, the PENDING effects "open" and
// "outbox", a CONFIRMED effect "done", a PENDING obligation "open", a COMPENSATED obligation "done"
// and a timer "t". Its name begins with that of the RPC.
type write struct {
	name string
	do   func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error
}

// free reports whether the operation may go without a fence in any mode.
func (w write) free() bool {
	method, _, _ := strings.Cut(w.name, " ")
	return tape.Authorities()[method] != tape.Driver
}

func writes() []write {
	outcome := func(op func(*tape.Tape) func(*testing.T, tape.OutcomeRequest) error, key string) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			return op(tp)(t, tape.OutcomeRequest{Run: run, Key: key, Status: tape.EffectFailed, Fence: f})
		}
	}
	complete := func(tp *tape.Tape) func(*testing.T, tape.OutcomeRequest) error {
		return func(t *testing.T, req tape.OutcomeRequest) error {
			_, err := tp.CompleteEffect(t.Context(), req)
			return err
		}
	}
	reconcile := func(tp *tape.Tape) func(*testing.T, tape.OutcomeRequest) error {
		return func(t *testing.T, req tape.OutcomeRequest) error {
			_, err := tp.ReconcileEffect(t.Context(), req)
			return err
		}
	}
	effect := func(key, scope string) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: run, CustomKey: key, Scope: scope, Fence: f})
			return err
		}
	}
	decision := func(index int64) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.RecordDecision(t.Context(), run, tape.Decision{Index: index}, f)
			return err
		}
	}
	timer := func(id string, at int64) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.SetTimer(t.Context(), tape.Timer{Run: run, ID: id, FireAtMS: at}, f)
			return err
		}
	}
	cancel := func(id string) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.CancelTimer(t.Context(), run, id, f)
			return err
		}
	}
	return append(obligationWrites(), []write{
		{name: "RecordDecision", do: decision(1)},
		{name: "RecordDecision replayed", do: decision(0)},
		{name: "BeginEffect", do: effect("new", "")},
		{name: "BeginEffect replayed", do: effect("done", "")},
		{name: "BeginEffect with a scope", do: effect("new-scoped", "pay")},
		{name: "CompleteEffect", do: outcome(complete, "open")},
		{name: "CompleteEffect replayed", do: outcome(complete, "done")},
		{name: "ClaimEffectDispatch", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, acquired, _, err := tp.ClaimEffectDispatch(t.Context(), run, "outbox", tape.ClaimRequest{Claimer: "c", Fence: f})
			if err == nil && !acquired {
				err = errors.New("not acquired")
			}
			return err
		}},
		{name: "RecordDispatchAttempt", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "outbox", Fence: f})
			return err
		}},
		{name: "RecordExternalObservation", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.RecordExternalObservation(t.Context(), tape.Observation{
				Run: run, Key: "outbox", Resolution: tape.ResolvedDuplicate, CompensateKind: "reverse", Fence: f,
			})
			return err
		}},
		{name: "AwaitSignal", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, _, err := tp.AwaitSignal(t.Context(), tape.AwaitRequest{Run: run, Gate: "empty", Fence: f})
			return err
		}},
		{name: "SendSignal", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.SendSignal(t.Context(), tape.Signal{Run: run, Gate: "empty", Fence: f})
			return err
		}},
		{name: "ReconcileEffect", do: outcome(reconcile, "open")},
		{name: "ReconcileEffect replayed", do: outcome(reconcile, "done")},
		{name: "ResumeRun", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: run, Fence: f})
			return err
		}},
		{name: "BeginRun", do: func(t *testing.T, tp *tape.Tape, _ runstore.RunID, f runstore.Fence) error {
			req := beginRequest("i")
			req.Fence = f
			_, err := tp.BeginRun(t.Context(), req)
			return err
		}},
		{name: "EndRun", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: run, Status: tape.RunTerminal, Fence: f})
			return err
		}},
		{name: "SetTimer", do: timer("new", 1)},
		{name: "SetTimer again", do: timer("t", 2)},
		{name: "SetTimer replayed", do: timer("t", 1)},
		{name: "CancelTimer", do: cancel("t")},
		{name: "CancelTimer of nothing", do: cancel("none")},
		// A run that goes on is not compacted, and one that has ended has no grant.
		{name: "CompactRun", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.CompactRun(t.Context(), run, f)
			if errors.Is(err, tape.ErrRefused) {
				return nil
			}
			return err
		}},
		{name: "SetBudget", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: run, USD: 1, Fence: f})
			return err
		}},
		{name: "ChargeBudget", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: run, USD: 1, Fence: f})
			return err
		}},
	}...)
}

// obligationWrites are the writing operations on obligations, on one that they change and on one
// that they leave as it is.
func obligationWrites() []write {
	register := func(key string) func(*testing.T, *tape.Tape, runstore.RunID, runstore.Fence) error {
		return func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: run, EffectKey: key, Fence: f})
			return err
		}
	}
	// seq returns the seq of a run's obligation, 0 for none.
	seq := func(t *testing.T, tp *tape.Tape, run runstore.RunID, key string) runstore.Seq {
		all, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: run})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if o.EffectKey == key {
				return o.Seq
			}
		}
		return 0
	}
	var writes []write
	for key, suffix := range map[string]string{"open": "", "done": " of a final one"} {
		writes = append(writes,
			write{name: "ClaimObligation" + suffix, do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
				_, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: run, Seq: seq(t, tp, run, key), Fence: f})
				return err
			}},
			write{name: "RecordObligationAttempt" + suffix, do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
				_, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: run, Seq: seq(t, tp, run, key), Fence: f})
				return err
			}},
			write{name: "ResolveObligation" + suffix, do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
				_, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: run, Seq: seq(t, tp, run, key), Fence: f})
				return err
			}})
	}
	return append(writes,
		write{name: "ClaimObligation of nothing", do: func(t *testing.T, tp *tape.Tape, run runstore.RunID, f runstore.Fence) error {
			_, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: run, Seq: 99, Fence: f})
			return err
		}},
		write{name: "RegisterCompensation", do: register("new")},
		write{name: "RegisterCompensation replayed", do: register("done")})
}

// prepare begins the run that writes work on.
func prepare(t *testing.T, tp *tape.Tape) tape.BeginRunResult {
	t.Helper()
	r := begin(t, tp, "i")
	if _, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{}, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	for key, mode := range map[string]tape.DispatchMode{"open": tape.Inline, "outbox": tape.Outbox, "done": tape.Inline} {
		if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: key, Mode: mode}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "done", Status: tape.EffectConfirmed}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.SetTimer(t.Context(), tape.Timer{Run: r.ID, ID: "t", FireAtMS: 1}, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"open", "done"} {
		o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: r.ID, EffectKey: key})
		if err == nil && key == "done" {
			_, err = tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: r.ID, Seq: o.Seq})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestAZombieIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, w := range writes() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			zombie := prepare(t, tp)
			// The same owner name, so that only the grants distinguish the two.
			if _, err := tp.BeginRun(t.Context(), beginRequest("i")); err != nil {
				t.Fatal(err)
			}
			before := historyOf(t, s, zombie.ID)
			err := w.do(t, tp, zombie.ID, zombie.Lease.Fence())
			var fenced *runstore.FencedError
			if !errors.As(err, &fenced) || fenced.Current != 2 {
				t.Errorf("%s = %v, want ErrFenced by token 2", w.name, err)
			}
			if after := historyOf(t, s, zombie.ID); !reflect.DeepEqual(before, after) {
				t.Errorf("the zombie changed %+v to %+v", before, after)
			}
		})
	}
}

func TestTheCurrentGrantWrites(t *testing.T) {
	t.Parallel()
	for _, mode := range []tape.FenceMode{tape.FencePresented, tape.FenceRequired} {
		for _, w := range writes() {
			t.Run(fmt.Sprint(mode, "/", w.name), func(t *testing.T) {
				t.Parallel()
				tp, s, store := newTape(t)
				r := prepare(t, tp)
				store.Advance(time.Hour) // expired, but not taken over
				if err := w.do(t, tape.New(s, &tape.Options{Fence: mode}), r.ID, r.Lease.Fence()); err != nil {
					t.Errorf("%s = %v, want no error", w.name, err)
				}
			})
		}
	}
}

func TestWritesWithoutAFence(t *testing.T) {
	t.Parallel()
	for _, w := range writes() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			r := prepare(t, tp)
			before := historyOf(t, s, r.ID)
			err := w.do(t, tape.New(s, &tape.Options{Fence: tape.FenceRequired}), r.ID, runstore.Fence{})
			if w.free() {
				if err != nil {
					t.Errorf("required: %v, want no error", err)
				}
				return
			}
			if !errors.Is(err, tape.ErrFenceRequired) {
				t.Errorf("required: %v, want ErrFenceRequired", err)
			}
			if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
				t.Errorf("the refused write changed %+v to %+v", before, after)
			}
			if err := w.do(t, tp, r.ID, runstore.Fence{}); err != nil {
				t.Errorf("presented: %v, want no error", err)
			}
		})
	}
}

func TestGrantFence(t *testing.T) {
	t.Parallel()
	lease := runstore.Lease{Run: "r", Owner: "ö", Token: 7, Grant: "g"}
	f, err := tape.GrantOf(lease).Fence("r")
	if err != nil || f != lease.Fence() {
		t.Errorf("Fence = %+v, %v, want that of the lease", f, err)
	}
	for _, g := range []tape.Grant{{}, {Owner: "o", Token: 1}, {Owner: "o", ID: "g"}, {Token: 1, ID: "g"}, {Owner: "o", Token: -1, ID: "g"}} {
		if f, err := g.Fence("r"); !errors.Is(err, runstore.ErrInvalid) || !f.IsZero() {
			t.Errorf("Fence of %+v = %+v, %v, want ErrInvalid", g, f, err)
		}
	}
	tp, _, _ := newTape(t)
	r := prepare(t, tp)
	for _, w := range writes() {
		if w.name == "BeginRun" {
			continue // its run is derived
		}
		if err := w.do(t, tp, "another", r.Lease.Fence()); !errors.Is(err, runstore.ErrInvalid) {
			t.Errorf("%s of another run = %v, want ErrInvalid", w.name, err)
		}
	}
}
