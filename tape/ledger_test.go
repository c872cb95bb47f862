package tape_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// Charges of one budget in one process wait for the one that has lost to another process and tries
// again: those that lost as well, and those that begin later, which do not even read. A caller that
// gives up while it waits has written nothing, and its error says so.
func TestWaitingForATurn(t *testing.T) {
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
		lost, turn := make(chan struct{}), make(chan struct{})
		calls, commits := 0, 0
		tp := tape.New(hook(s, func(op string) error {
			calls++
			if op != "commit" {
				return nil
			}
			switch commits++; commits {
			case 1: // of the caller that will lose
				<-lost
				return charge(t.Context(), inner, 1)
			case 2, 4: // another process is faster
				return charge(t.Context(), inner, 1)
			case 3: // of the caller whose turn it is
				<-turn
			}
			return nil
		}, nil), nil)
		start := func(ctx context.Context, usd float64) <-chan error {
			done := make(chan error, 1)
			go func() { done <- charge(ctx, tp, usd) }()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		loser := start(ctx, 100)
		first := start(t.Context(), 10)
		close(lost)
		synctest.Wait()
		before := calls
		impatient := start(ctx, 1000)
		patient := start(t.Context(), 10000)
		if calls != before || commits != 3 {
			t.Errorf("%d calls while another caller has its turn, of %d commits; want 0, of 3", calls-before, commits)
		}
		cancel()
		if err := <-loser; !errors.Is(err, runstore.ErrConflict) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("the caller that lost and gave up: %v, want the conflict", err)
		}
		if err := <-impatient; !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("the caller that gave up before its turn: %v, want ErrUnavailable", err)
		}
		close(turn)
		if err := <-first; err != nil {
			t.Errorf("the caller whose turn it was: %v", err)
		}
		if err := <-patient; err != nil {
			t.Errorf("the caller that waited: %v", err)
		}
		got, err := inner.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID})
		if err != nil || got.USDSpent != 10014 {
			t.Errorf("spent %v, %v, want 10014", got.USDSpent, err)
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
