package tape_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// TestAWriteThatWasNotSentIsNotApplied checks that a write before which the run of a session or a value could not be
// surely created is reported as not applied: a client may resend an event, which has no identity.
func TestAWriteThatWasNotSentIsNotApplied(t *testing.T) {
	t.Parallel()
	tp := tape.New(hook(memory.New(nil).Open(), nil, func(op string) error {
		if op == "create" {
			return errReplyLost
		}
		return nil
	}), nil)
	key := tape.SessionKey{App: "a", User: "u", Session: "s"}
	_, err := tp.AppendEvent(t.Context(), key, tape.SessionEvent{ID: "e"}, "", runstore.Fence{})
	if s, _, _ := tp.GetSession(t.Context(), key, 0); runstore.OutcomeOf(err) != runstore.NotApplied || len(s.Events) > 0 {
		t.Errorf("AppendEvent = %v (%v), and the session has %d events; want not applied", err, runstore.OutcomeOf(err), len(s.Events))
	}
	_, err = tp.WriteValue(t.Context(), tape.ValueKey{Key: "k"}, "1", "w", tape.AnyVersion, runstore.Fence{})
	if _, found, _ := tp.GetValue(t.Context(), tape.ValueKey{Key: "k"}); runstore.OutcomeOf(err) != runstore.NotApplied || found {
		t.Errorf("WriteValue = %v (%v), and the value exists: %v; want not applied", err, runstore.OutcomeOf(err), found)
	}
}

// TestNoWritesToRunsOfTheTape checks that a request which names the run of a value, as feeds show it, is answered
// as for a run that does not exist, and leaves the value alone.
func TestNoWritesToRunsOfTheTape(t *testing.T) {
	t.Parallel()
	tp := tape.New(memory.New(nil).Open(), nil)
	key := tape.ValueKey{Namespace: "n", Key: "k"}
	if _, err := tp.WriteValue(t.Context(), key, "1", "w", 0, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func() error{
		"RecordDecision": func() error {
			_, err := tp.RecordDecision(t.Context(), key.Run(), tape.Decision{}, runstore.Fence{})
			return err
		},
		"BeginEffect": func() error {
			_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: key.Run(), Tool: "pay"})
			return err
		},
		"SetTimer": func() error {
			_, err := tp.SetTimer(t.Context(), tape.Timer{Run: key.Run(), ID: "t"}, runstore.Fence{})
			return err
		},
		"SetBudget": func() error {
			_, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: key.Run()})
			return err
		},
	} {
		if err := write(); !errors.Is(err, tape.ErrNoSuchRun) {
			t.Errorf("%s of a value's run = %v, want ErrNoSuchRun", name, err)
		}
	}
	if v, err := tp.WriteValue(t.Context(), key, "2", "w", 1, runstore.Fence{}); err != nil || v.Version != 2 {
		t.Errorf("WriteValue at version 1 = %+v, %v; want version 2", v, err)
	}
}

// TestABusinessKeyNeedsARun checks that an effect with a business key in a run that does not exist is refused as
// such, on a store that commits to one run at a time too.
func TestABusinessKeyNeedsARun(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]runstore.RunStore{
		"two runs": memory.New(nil).Open(), "ahead": &counter{RunStore: memory.New(nil).Open()},
	} {
		if _, err := tape.New(store, nil).BeginEffect(t.Context(), business("none", "invoice-1")); !errors.Is(err, tape.ErrNoSuchRun) {
			t.Errorf("%s: BeginEffect = %v, want ErrNoSuchRun", name, err)
		}
	}
}
