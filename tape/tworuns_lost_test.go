package tape_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// losing is a store, no MultiCommitter, that loses the replies to the last write of a step on its lead. From
// the next write on it loses nothing more, and remembers no batch.
type losing struct {
	runstore.RunStore
	lost int
	over bool
}

func (s *losing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	finishes := slices.ContainsFunc(b.Records, func(r runstore.RecordWrite) bool { return r.Key == crossrun.IntentKey && r.Delete })
	if s.over = s.over || s.lost > 0 && !finishes; s.over {
		b.ID = ""
	}
	done, err := s.RunStore.Commit(ctx, b)
	if err == nil && finishes && !s.over {
		s.lost++
		return runstore.Committed{}, errReplyLost
	}
	return done, err
}

// madeOnce are writes of which a second copy shows: times returns how often one was made.
var madeOnce = map[string]struct {
	do    func(context.Context, *tape.Tape, runstore.Fence) error
	times func(*testing.T, *tape.Tape) int
}{
	"AppendEvent": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.AppendEvent(ctx, session, tape.SessionEvent{ID: "new"}, "", f)
		return err
	}, func(t *testing.T, tp *tape.Tape) int { return len(getSession(t, tp, session, 0).Events) - 1 }},
	"WriteValue at any version": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.WriteValue(ctx, valueKey, "2", "w", tape.AnyVersion, f)
		return err
	}, timesWritten},
	"WriteValue at a version": {func(ctx context.Context, tp *tape.Tape, f runstore.Fence) error {
		_, err := tp.WriteValue(ctx, valueKey, "2", "w", 1, f)
		return err
	}, timesWritten},
}

// TestStepThatIsForgottenBeforeItsRepeat proves that a write under the fence of another run is not applied
// again if its replies were lost and the lead no longer remembers it: its own change makes the repeat's guards
// fail, and the outcome is unknown, whereas a conflict would let the caller read and write again.
func TestStepThatIsForgottenBeforeItsRepeat(t *testing.T) {
	t.Parallel()
	for name, c := range madeOnce {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(nil).Open()
				tp := tape.New(s, nil)
				if _, err := tp.WriteValue(t.Context(), valueKey, "1", "w", 0, runstore.Fence{}); err != nil {
					t.Fatal(err)
				}
				f := prepareSession(t, tp).Lease.Fence()
				cut := &losing{RunStore: s}
				err := c.do(t.Context(), tape.New(cut, nil), f)
				if !cut.over {
					t.Error("the step was not repeated")
				}
				if !errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, runstore.ErrConflict) {
					t.Errorf("the write ended with %v, want an unknown outcome that matches no conflict", err)
				}
				if n := c.times(t, tp); n != 1 {
					t.Errorf("the write was made %d times, want once", n)
				}
			})
		})
	}
}

// forgetting is a store that applies the first write, loses its reply, and no longer remembers it or any
// later batch.
type forgetting struct {
	runstore.RunStore
	commits int
}

func (s *forgetting) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	b.ID = ""
	done, err := s.RunStore.Commit(ctx, b)
	if s.commits++; err == nil && s.commits == 1 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome, Cause: runstore.ErrForgotten}
	}
	return done, err
}

// TestForgottenWriteIsNotRepeated proves that a write is not sent again if the store no longer remembers it:
// a repeat could be applied again, or be refused for the write's own change, and then be decided again.
func TestForgottenWriteIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range madeOnce {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memory.New(nil).Open()
			tp := tape.New(s, nil)
			if _, err := tp.WriteValue(t.Context(), valueKey, "1", "w", 0, runstore.Fence{}); err != nil {
				t.Fatal(err)
			}
			prepareSession(t, tp)
			cut := &forgetting{RunStore: s}
			err := c.do(t.Context(), tape.New(cut, nil), runstore.Fence{})
			if runstore.OutcomeOf(err) != runstore.Unknown || cut.commits != 1 {
				t.Errorf("the write ended with %v after %d commits, want an unknown outcome after one", err, cut.commits)
			}
			if n := c.times(t, tp); n != 1 {
				t.Errorf("the write was made %d times, want once", n)
			}
		})
	}
}

func timesWritten(t *testing.T, tp *tape.Tape) int {
	t.Helper()
	v, _, err := tp.GetValue(t.Context(), valueKey)
	if err != nil {
		t.Fatal(err)
	}
	return int(v.Version) - 1
}
