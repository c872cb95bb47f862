package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// refusal is a write that its run refuses for some time.
type refusal struct {
	name  string
	stand initialState
	do    func(ctx context.Context, s runstore.RunStore, id runstore.RunID, held runstore.Lease) error
	// want is the answer while the run refuses the write; nil means that the write is found to be
	// done. After a purge, which deletes the trace of the first copy, the outcome may also be
	// unknown.
	want error
	// begin makes the run refuse the write, and end makes the run accept the write again.
	begin, end func(ctx context.Context, s runstore.RunStore, id runstore.RunID) error
}

// setStatus returns a function that sets a run's status.
func setStatus(to runstore.Status) func(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
	return func(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Status = &to
		_, err := s.Commit(ctx, b)
		return err
	}
}

func createAnew(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
	_, err := s.CreateRun(ctx, runstore.RunSpec{ID: id, Status: 7})
	return err
}

func endRun(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Purge = true
	_, err := s.Commit(ctx, b)
	return err
}

func refusals() []refusal {
	return []refusal{
		{"append-in-a-status", stateLeased, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, held runstore.Lease) error {
			b := runstore.NewBatch(id, held.Fence(), runstore.InStatus(1))
			b.Append("late", []byte("late"))
			_, err := s.Commit(ctx, b)
			return err
		}, runstore.ErrConflict, setStatus(2), setStatus(1)},
		{"append-to-a-run-that-is-created-anew", stateLeased, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, _ runstore.Lease) error {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Append("late", []byte("late"))
			_, err := s.Commit(ctx, b)
			return err
		}, runstore.ErrNotFound, endRun, createAnew},
		{"acquire", stateFree, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, _ runstore.Lease) error {
			_, err := s.AcquireLease(ctx, kit.Acquiring(id, "late", harness.TTL))
			return err
		}, runstore.ErrLeaseHeld, func(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
			_, err := s.AcquireLease(ctx, kit.Acquiring(id, "another", harness.TTL))
			return err
		}, func(ctx context.Context, s runstore.RunStore, id runstore.RunID) error {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Release = true
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"create", stateNoRun, func(ctx context.Context, s runstore.RunStore, id runstore.RunID, _ runstore.Lease) error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: id, Status: 3})
			return err
		}, nil, createAnew, endRun},
	}
}

func lateRefusal(t harness.T, e *harness.Env) {
	n := openNetwork(t, e)
	for _, w := range refusals() {
		eachRoundTrip(t, e, w.name, func(id runstore.RunID, after int) bool { return w.arriveLate(t, e, n, id, after) })
	}
}

// arriveLate holds the first copy of w after that many round trips, makes the run refuse w so that
// the repeat is refused, makes the run accept w again, and delivers the first copy. It fails the
// case if that copy changes anything. kept reports whether the network held a request.
func (w refusal) arriveLate(t harness.T, e *harness.Env, n network, id runstore.RunID, after int) (kept bool) {
	t.Helper()
	held := sending{stand: w.stand}.seedRun(t, e, id)
	if after == 0 && w.stand != stateNoRun {
		prepareStatement(t, func() error { return w.do(t.Context(), n.s, "nowhere", missingRunLease()) })
	}
	awaitWorking(t, e, n.s)
	n.Faults.Hold(after)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := start(func() (receipt, error) { return receipt{}, w.do(ctx, n.s, id, held) })
	kept = a.awaitHarm(t, 1, n.Faults.AwaitHeld)
	if !kept {
		n.Faults.Reset()
		return false
	}
	bound := harness.CaseTimeout
	if after > 0 { // the engine may be applying the write, with its run locked
		bound = 2 * time.Second
	}
	patient, done := context.WithTimeout(t.Context(), bound)
	err := w.begin(patient, e.Store, id)
	done()
	if kind := runstore.KindOf(err); after > 0 && (kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome) {
		t.Logf("%s: what makes the run refuse it has to wait: %v", id, err)
		cancel()
		a.wait(t, w.name)
		n.Faults.Reset()
		n.awaitAnswered(t)
		return true
	}
	if err != nil && !(after > 0 && runstore.OutcomeOf(err) == runstore.NotApplied) {
		t.Fatalf("%s: make the run refuse it: %v", id, err)
	}
	n.Faults.DropClientSide()
	a.wait(t, w.name)
	if after > 0 && a.err == nil && w.want != nil { // the first copy was applied before
		n.Faults.Reset()
		return true
	}
	unknown := w.want == runstore.ErrNotFound && errors.Is(a.err, runstore.ErrUnknownOutcome)
	if !errors.Is(a.err, w.want) && !unknown {
		t.Errorf("%s, repeated when the run refuses it: got error %v, want %v", id, a.err, w.want)
	}
	if err := w.end(t.Context(), e.Store, id); err != nil {
		t.Fatalf("%s: make the run ready again: %v", id, err)
	}
	state := func() string {
		text, _ := kit.DumpIfAny(t, e.Store, id)
		return text
	}
	before := state()
	n.Faults.Reset()
	n.awaitAnswered(t)
	kit.CheckUnchanged(t, fmt.Sprintf("the late first copy of %s, whose repeat was answered with %v,", id, a.err), before, state())
	return true
}
