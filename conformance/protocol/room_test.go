package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// TestFullRunsCanEnd fills a run until the store refuses the smallest record, where the store
// limits the records of a run. It then ends everything that the run has begun, with texts of the
// maximum size: an outcome can always be recorded.
func TestFullRunsCanEnd(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		f := &fullRun{t: t, s: store, tp: tape.New(store, nil)}
		f.take("first")
		f.prepare()
		f.fill()
		if f.limited != strings.HasSuffix(t.Name(), "/bigtable") {
			t.Fatalf("the store limits the records of a run: %t", f.limited)
		}
		for i := range 10 { // enough that a number in the grant's record gains a digit
			if i == 6 {
				f.top()
			}
			f.take(fmt.Sprint(i))
		}
		for i, key := range f.inline {
			// Sizes of 120 to 160 bytes take the most room in Bigtable's row.
			f.complete(key, []int{120, 140, 150, 160, tape.MaxOutcome, 0, 16_000, 17_000}[i%8])
			if i < 4 {
				f.top()
			}
		}
		for i, key := range f.outbox {
			f.dispatch(key, []int{100, tape.MaxOutcome}[i%2], i == 0)
		}
		f.end()
	})
}

type fullRun struct {
	t       *testing.T
	s       runstore.RunStore
	tp      *tape.Tape
	run     tape.BeginRunResult
	duties  []runstore.Seq
	limited bool
	// pebbles and spares count the records that top has added.
	pebbles, spares int
	// inline and outbox are the keys of the PENDING effects.
	inline, outbox []string
}

func (f *fullRun) check(what string, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
}

func (f *fullRun) fence() runstore.Fence { return f.run.Lease.Fence() }

// take acquires the run's lease.
func (f *fullRun) take(owner string) {
	f.t.Helper()
	var err error
	f.run, err = f.tp.BeginRun(f.t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "app"}, Owner: owner})
	f.check("BeginRun by "+owner, err)
}

// prepare begins the operations that end after the run is full.
func (f *fullRun) prepare() {
	ctx := f.t.Context()
	for _, kind := range []string{"settled", "failed"} {
		o, err := f.tp.RegisterCompensation(ctx, tape.Compensation{Run: f.run.ID, EffectKey: "k", Kind: kind, Fence: f.fence()})
		f.check("RegisterCompensation", err)
		f.duties = append(f.duties, o.Seq)
	}
	_, err := f.tp.SetBudget(ctx, tape.BudgetCaps{Run: f.run.ID, Fence: f.fence()})
	f.check("SetBudget", err)
	_, _, err = f.tp.AwaitSignal(ctx, tape.AwaitRequest{Run: f.run.ID, Gate: "approval", Fence: f.fence()})
	f.check("AwaitSignal", err)
	f.take("second")
}

// put puts a record, and reports whether the store had room for it.
func (f *fullRun) put(w runstore.RecordWrite) bool {
	f.t.Helper()
	b := runstore.NewBatch(f.run.ID, f.fence())
	w.Index = inQueue
	b.Records = []runstore.RecordWrite{w}
	_, err := f.s.Commit(f.t.Context(), b)
	if err != nil && !errors.Is(err, runstore.ErrTooLarge) {
		f.t.Fatalf("filling: %v", err)
	}
	return err == nil
}

// inQueue is the index entry of the filling records: Bigtable limits only records that are in
// queues or reserve room for one.
var inQueue = []runstore.Place{{Index: "full", At: runstore.After(0)}}

func numbered(name string, n int) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("%s-%d", name, n))
}

// ballast returns a small record that reserves room for n others, which are never written. The run
// is full soon, and its row stays small.
func ballast(n, later int) runstore.RecordWrite {
	w := runstore.RecordWrite{Key: numbered("ballast", n)}
	for i := range later {
		key := numbered(strings.Repeat("x", 900), i)
		w.Reserve = append(w.Reserve, runstore.RecordWrite{Key: key, Value: make([]byte, 256), Index: inQueue})
	}
	return w
}

// top uses up the remaining room but for a few bytes: first with the largest records that a store
// must keep in the row, and then with two records that grow.
func (f *fullRun) top() {
	f.t.Helper()
	if !f.limited {
		return
	}
	for f.put(runstore.RecordWrite{Key: numbered("pebble", f.pebbles), Value: make([]byte, 256)}) {
		f.pebbles++
	}
	for range 2 {
		if f.spares == 0 {
			f.t.Fatal("no spare is left")
		}
		f.spares--
		for size, step := 0, 128; step >= 4; step /= 2 {
			if f.put(runstore.RecordWrite{Key: numbered("spare", f.spares), Value: make([]byte, size+step)}) {
				size += step
			}
		}
	}
}

// fill adds records to the run, then effects until one is refused, and then records until the
// smallest is refused. On a store without a limit it begins a fixed number of effects.
func (f *fullRun) fill() {
	for f.spares = range 40 {
		f.put(runstore.RecordWrite{Key: numbered("spare", f.spares)})
	}
	n := 0
	for _, later := range []int{1, 250, 10, 1} {
		f.limited = false
		for range 25 {
			if f.limited = !f.put(ballast(n, later)); f.limited {
				break
			}
			n++
		}
	}
	b := runstore.NewBatch(f.run.ID, f.fence())
	for i := range 12 { // delete some of the first records, to make room for some effects
		b.Delete(numbered("ballast", i))
	}
	_, err := f.s.Commit(f.t.Context(), b)
	f.check("making room", err)

	for i := range 100 {
		req := tape.BeginEffectRequest{Run: f.run.ID, CustomKey: fmt.Sprintf("effect-%d", i), Connector: "bank", Fence: f.fence()}
		if i%3 == 0 {
			req.Mode = tape.Outbox
		}
		_, err := f.tp.BeginEffect(f.t.Context(), req)
		var limit *runstore.InputError
		if f.limited && errors.As(err, &limit) && limit.Kind == runstore.ErrTooLarge && limit.Field == "records" {
			break
		}
		f.check("BeginEffect", err)
		if req.Mode == tape.Outbox {
			f.outbox = append(f.outbox, req.CustomKey)
		} else {
			f.inline = append(f.inline, req.CustomKey)
		}
		if i == 20 && !f.limited {
			return
		}
	}
	if len(f.outbox) < 3 || len(f.inline) < 8 {
		f.t.Fatalf("%d and %d effects were begun, want more", len(f.outbox), len(f.inline))
	}
	f.top()
}

func (f *fullRun) complete(key string, size int) {
	f.t.Helper()
	response := strings.Repeat("r", size)
	e, err := f.tp.CompleteEffect(f.t.Context(), tape.OutcomeRequest{
		Run: f.run.ID, Key: key, Status: tape.EffectConfirmed, Response: response, Fence: f.fence(),
	})
	if err != nil || e.Status != tape.EffectConfirmed || e.Response != response {
		f.t.Fatalf("CompleteEffect of %s with %d bytes = status %d, %d bytes, %v", key, size, e.Status, len(e.Response), err)
	}
}

// dispatch claims an effect, fails, retries and gives up, so that a reconciler records the outcome.
func (f *fullRun) dispatch(key string, size int, first bool) {
	f.t.Helper()
	if first {
		f.top()
	}
	ctx := f.t.Context()
	for _, next := range []time.Time{time.UnixMilli(1), {}} {
		claimer := strings.Repeat("c", 50)
		e, acquired, _, err := f.tp.ClaimEffectDispatch(ctx, f.run.ID, key, tape.ClaimRequest{Claimer: claimer})
		if err != nil || !acquired {
			f.t.Fatalf("ClaimEffectDispatch of %s = %t, %v", key, acquired, err)
		}
		if first {
			f.top()
		}
		_, err = f.tp.RecordDispatchAttempt(ctx, tape.DispatchReport{
			Run: f.run.ID, Key: key, Claim: e.Claims, Error: strings.Repeat("e", 100), Next: next,
		})
		f.check("RecordDispatchAttempt of "+key, err)
	}
	e, err := f.tp.ReconcileEffect(ctx, tape.OutcomeRequest{Run: f.run.ID, Key: key, Status: tape.EffectFailed, Error: strings.Repeat("e", size)})
	if err != nil || e.Status != tape.EffectFailed {
		f.t.Fatalf("ReconcileEffect of %s = %d, %v", key, e.Status, err)
	}
}

// end ends what prepare began, and then the run.
func (f *fullRun) end() {
	ctx := f.t.Context()
	f.top()
	_, err := f.tp.ChargeBudget(ctx, tape.BudgetCharge{Run: f.run.ID, USD: 1.0 / 3, Tokens: 1 << 60, Fence: f.fence()})
	f.check("ChargeBudget", err)
	f.top()
	for i, duty := range f.duties {
		claim, err := f.tp.ClaimObligation(ctx, tape.ObligationClaimRequest{Run: f.run.ID, Seq: duty, Claimer: strings.Repeat("c", 100)})
		if err != nil || !claim.Acquired {
			f.t.Fatalf("ClaimObligation = %+v, %v", claim, err)
		}
		f.top()
		if i == 0 {
			_, err = f.tp.ResolveObligation(ctx, tape.ObligationResult{Run: f.run.ID, Seq: duty, Result: strings.Repeat("r", tape.MaxResult)})
		} else {
			_, err = f.tp.RecordObligationAttempt(ctx, tape.ObligationAttempt{Run: f.run.ID, Seq: duty, Error: strings.Repeat("e", tape.MaxAttemptError)})
		}
		f.check("the outcome of an obligation", err)
	}
	_, err = f.tp.SendSignal(ctx, tape.Signal{Run: f.run.ID, Gate: "approval", Resolution: strings.Repeat("s", 150)})
	f.check("SendSignal", err)
	f.top()
	_, delivered, err := f.tp.AwaitSignal(ctx, tape.AwaitRequest{Run: f.run.ID, Gate: "approval", Fence: f.fence()})
	if err != nil || !delivered {
		f.t.Fatalf("AwaitSignal = %t, %v", delivered, err)
	}
	f.top()
	_, err = f.tp.EndRun(ctx, tape.EndRunRequest{Run: f.run.ID, Status: tape.RunFailed, Detail: strings.Repeat("d", 100), Fence: f.fence()})
	f.check("EndRun", err)
}
