package optimistic_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// A repeat that the store did not judge does not tell what became of the write
// before it.
func TestRepeatThatIsRefusedLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for _, second := range []error{runstore.ErrUnavailable, runstore.ErrCorrupt, runstore.ErrClosed} {
		steps := []error{runstore.ErrUnknownOutcome, second}
		_, err := optimistic.Repeat(t.Context(), func() (int, error) {
			err := steps[0]
			steps = steps[1:]
			return 0, err
		})
		if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, second) {
			t.Errorf("unknown, then %v: got %v, which means %v", second, err, runstore.OutcomeOf(err))
		}
	}
	// What the store did judge is definite: a repeat under the same id is fenced
	// only if the first was not applied.
	steps := []error{runstore.ErrUnknownOutcome, runstore.ErrFenced}
	_, err := optimistic.Repeat(t.Context(), func() (int, error) {
		err := steps[0]
		steps = steps[1:]
		return 0, err
	})
	if !errors.Is(err, runstore.ErrFenced) || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("unknown, then fenced: got %v", err)
	}
}

// A step that the store no longer remembers is not repeated: the store would apply it again.
func TestForgottenStepIsNotRepeated(t *testing.T) {
	t.Parallel()
	steps := 0
	_, err := optimistic.Repeat(t.Context(), func() (int, error) {
		steps++
		return 0, &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: runstore.ErrForgotten}
	})
	if runstore.OutcomeOf(err) != runstore.Unknown || steps != 1 {
		t.Errorf("got %v after %d steps, want an unknown outcome after one", err, steps)
	}
}
