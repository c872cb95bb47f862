package admin_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// TestPurgeAfterAnEvent checks that a purge deletes no event that the operator has not seen, whether the
// event arrives before the grant or under it.
func TestPurgeAfterAnEvent(t *testing.T) {
	t.Parallel()
	arrive := func(t *testing.T, s runstore.RunStore) {
		t.Helper()
		b := runstore.NewBatch("run", runstore.Unguarded("a signal"))
		b.Append("signal", nil)
		if _, err := s.Commit(context.WithoutCancel(t.Context()), b); err != nil {
			t.Error(err)
		}
	}
	refused := func(t *testing.T, s *faulty, req admin.PurgeRequest, want string) {
		t.Helper()
		var conflict *runstore.ConflictError
		if _, err := admin.Purge(t.Context(), s, req); !errors.As(err, &conflict) || conflict.Guard != "seq" {
			t.Errorf("got %v, want a conflict of the seq", err)
		}
		if got := stages(t, s.RunStore); got != want {
			t.Errorf("the stages are %q, want %q", got, want)
		}
		head, err := s.GetRun(t.Context(), "run")
		if err != nil || head.LastSeq != 1 || head.Holder.Token != 0 {
			t.Errorf("the run afterwards: %+v, %v, want one that is free, with the event", head, err)
		}
		req.Token, req.Next = head.Token, head.LastSeq+1
		if _, err := admin.Purge(t.Context(), s, req); err != nil {
			t.Errorf("the repeat: %v", err)
		}
	}
	req := request
	req.Next = 1
	t.Run("before the grant", func(t *testing.T) {
		t.Parallel()
		s := newFaulty(t)
		arrive(t, s.RunStore)
		refused(t, s, req, "")
	})
	t.Run("under the grant", func(t *testing.T) {
		t.Parallel()
		s := newFaulty(t)
		arrived := false
		s.commit = func(b runstore.Batch) (bool, error) {
			if b.Purge && !arrived {
				arrived = true
				arrive(t, s.RunStore)
			}
			return true, nil
		}
		refused(t, s, req, "intended failed")
	})
	t.Run("with a step in progress", func(t *testing.T) {
		t.Parallel()
		s := newFaulty(t)
		held := lead(t, s)
		_ = step(t, s, held, func(n int) error { // the intent and the other run's part are written
			if n > 2 {
				return runstore.ErrUnavailable
			}
			return nil
		})
		req := preempting(held)
		head, err := s.GetRun(t.Context(), "run")
		if err != nil {
			t.Fatal(err)
		}
		req.Next = head.LastSeq + 1
		if _, err := admin.Purge(t.Context(), s, req); err != nil {
			t.Errorf("the events of the step count as events that arrive: %v", err)
		}
	})
	negative := request
	negative.Next = -1
	if _, err := admin.Purge(t.Context(), newFaulty(t), negative); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("a negative seq: got %v, want ErrInvalid", err)
	}
}
