package tape_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// A caller gives up while it waits for its turn at a row that others write. Its change is not
// applied, and it gets the conflict that it lost to.
func TestGivingUpWhileWaitingForATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, s, _ := newTape(t)
		r := begin(t, inner, "i")
		charge := func(ctx context.Context, tp *tape.Tape, usd float64) error {
			_, err := tp.ChargeBudget(ctx, tape.BudgetCharge{Run: r.ID, USD: usd})
			return err
		}
		if err := charge(t.Context(), inner, 1); err != nil {
			t.Fatal(err)
		}
		blocked := make(chan struct{})
		commits := 0
		tp := tape.New(hook(s, func(op string) error {
			if op != "commit" {
				return nil
			}
			switch commits++; commits {
			case 1, 3: // another process is faster
				return charge(t.Context(), inner, 1)
			case 2: // the first caller, at its second attempt, which is its turn
				<-blocked
			}
			return nil
		}, nil), nil)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- charge(t.Context(), tp, 10) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { second <- charge(ctx, tp, 100) }()
		synctest.Wait()
		if commits != 3 {
			t.Fatalf("%d commits, want the second caller to wait after its first", commits)
		}
		cancel()
		err := <-second
		if !errors.Is(err, runstore.ErrConflict) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("the caller that gave up: %v, want the conflict", err)
		}
		close(blocked)
		if err := <-first; err != nil {
			t.Errorf("the caller whose turn it was: %v", err)
		}
		got, err := inner.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID})
		if err != nil || got.USDSpent != 13 {
			t.Errorf("spent %v, %v, want 13", got.USDSpent, err)
		}
	})
}

// purging purges a run before each commit to it.
type purging struct{ runstore.RunStore }

func (s purging) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	purge := runstore.NewBatch(b.Run(), runstore.Unguarded("a test"))
	purge.Purge = true
	if _, err := s.RunStore.Commit(ctx, purge); err != nil {
		return runstore.Committed{}, err
	}
	return s.RunStore.Commit(ctx, b)
}

// A session that is deleted whenever it is written is not written.
func TestSessionThatIsDeletedAgainAndAgain(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(purging{s}, nil)
	_, created := tp.CreateSession(t.Context(), session, "", runstore.Fence{})
	_, appended := tp.AppendEvent(t.Context(), session, tape.SessionEvent{ID: "e"}, "", runstore.Fence{})
	for name, err := range map[string]error{"CreateSession": created, "AppendEvent": appended} {
		if runstore.KindOf(err) != runstore.ErrUnavailable {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	if got := stateOf(t, s); got != "none" {
		t.Errorf("the session is %s, want none", got)
	}
}
