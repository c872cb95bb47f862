package tape_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// prepareStep returns a store and a driver's run, which leads a step that is under way: the store was
// down from the write behind its intent on.
func prepareStep(t *testing.T) (runstore.RunStore, tape.BeginRunResult) {
	t.Helper()
	s := twoRunStores["written ahead"](memory.New(nil).Open())
	lead := prepareSession(t, tape.New(s, nil))
	commits := 0
	cut := hook(s, func(op string) error {
		if op == "commit" {
			if commits++; commits > 4 {
				return errDown
			}
		}
		return nil
	}, nil)
	_, err := tape.New(cut, nil).AppendEvent(t.Context(), session, tape.SessionEvent{ID: "new"}, "{}", lead.Lease.Fence())
	if !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("AppendEvent = %v, want an unknown outcome", err)
	}
	return s, lead
}

// An operator ends or parks a run whose step is under way, without a fence, and the store fails. After
// an error that says "not applied" the driver goes on.
func TestUnfencedEndThatIsNotAppliedLeavesTheDriver(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"cancelled": "cancelled", "parked": "parked without a fence"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for calls := 0; ; calls++ {
				s, lead := prepareStep(t)
				tp := tape.New(s, nil)
				err := endings[end](t.Context(), failing(s, calls), lead)
				if err == nil {
					if calls < 3 {
						t.Errorf("it makes %d calls only", calls)
					}
					if _, err := tp.RecordDecision(t.Context(), lead.ID, tape.Decision{}, lead.Lease.Fence()); !errors.Is(err, runstore.ErrFenced) {
						t.Errorf("the run was %s, and the driver gets %v", name, err)
					}
					checkNoStep(t, s, lead.ID)
					return
				}
				if runstore.OutcomeOf(err) != runstore.NotApplied {
					continue
				}
				if _, fenced := tp.RecordDecision(t.Context(), lead.ID, tape.Decision{}, lead.Lease.Fence()); fenced != nil {
					t.Errorf("after %d calls: %v, which was not applied, and the driver gets %v", calls, err, fenced)
				}
			}
		})
	}
}

// A signal arrives while an AwaitSignal without a fence ends the step that kept it from parking the
// run. The call returns the signal and parks nothing: the driver goes on.
func TestUnfencedAwaitThatFindsASignalLeavesTheDriver(t *testing.T) {
	t.Parallel()
	s, lead := prepareStep(t)
	tp := tape.New(s, nil)
	signalled := behind(s, "commit", 1, func() {
		if _, err := tp.SendSignal(t.Context(), tape.Signal{Run: lead.ID, Gate: "g", Resolution: "{}"}); err != nil {
			t.Error(err)
		}
	})
	_, delivered, err := tape.New(signalled, nil).AwaitSignal(t.Context(), tape.AwaitRequest{Run: lead.ID, Gate: "g"})
	if err != nil || !delivered {
		t.Fatalf("AwaitSignal = %t, %v", delivered, err)
	}
	if _, err := tp.RecordDecision(t.Context(), lead.ID, tape.Decision{}, lead.Lease.Fence()); err != nil {
		t.Errorf("the signal was delivered, the run is not parked, and the driver gets %v", err)
	}
}
