package tape_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// The charges of one budget in one process take turns, so that each loses only to other processes.
// One that waits has not even read. If it gives up, it has written nothing, and its error says so.
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
		turn := make(chan struct{})
		calls, commits := 0, 0
		tp := tape.New(hook(s, func(op string) error {
			calls++
			if op != "commit" {
				return nil
			}
			switch commits++; commits {
			case 1, 3: // another process is faster
				return charge(t.Context(), inner, 1)
			case 2: // of the caller that has lost
				<-turn
			}
			return nil
		}, nil), nil)
		start := func(ctx context.Context, usd float64) <-chan error {
			done := make(chan error, 1)
			go func() { done <- charge(ctx, tp, usd) }()
			time.Sleep(200 * time.Millisecond) // longer than the pause of a caller that has lost, and 42 are shorter than a turn
			synctest.Wait()
			return done
		}
		first := start(t.Context(), 10)
		before := calls
		ctx, cancel := context.WithCancel(t.Context())
		impatient := start(ctx, 100)
		var patient []<-chan error
		for range 40 { // more than an operation has attempts
			patient = append(patient, start(t.Context(), 1))
		}
		if calls != before || commits != 2 {
			t.Errorf("%d calls while another caller has its turn, of %d commits; want 0, of 2", calls-before, commits)
		}
		cancel()
		if err := <-impatient; !errors.Is(err, runstore.ErrUnavailable) || runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("the caller that gave up before its turn: %v, want ErrUnavailable", err)
		}
		close(turn)
		for i, done := range append(patient, first) {
			if err := <-done; err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		}
		got, err := inner.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID})
		if err != nil || got.USDSpent != 53 {
			t.Errorf("spent %v, %v, want 53", got.USDSpent, err)
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
