package admin_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// lead creates the other run of a step, and makes a driver the holder of the run.
func lead(t *testing.T, s runstore.RunStore) runstore.Lease {
	t.Helper()
	_, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: time.Minute, Grant: runstore.NewGrantID()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return granted.Lease
}

// step appends an event to both runs. before is called ahead of the step's write number n; its error is
// the reply, and the write is lost.
func step(t *testing.T, s runstore.RunStore, held runstore.Lease, before func(n int) error) error {
	n := 0
	through := &faulty{RunStore: s, commit: func(runstore.Batch) (bool, error) {
		n++
		err := before(n)
		return err == nil, err
	}}
	b, other := runstore.NewBatch("run", held.Fence()), runstore.NewBatch("other", runstore.AtSeq(1))
	b.Append("step", nil)
	other.Append("step", nil)
	_, err := crossrun.Commit(t.Context(), through, b, other)
	return err
}

func stepsOfOther(t *testing.T, s runstore.RunStore) int {
	t.Helper()
	head, err := s.GetRun(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	return int(head.LastSeq)
}

func preempting(held runstore.Lease) admin.PurgeRequest {
	return admin.PurgeRequest{Run: "run", Token: held.Token, Preempt: true, Operator: "ada", Reason: "test"}
}

// A driver is paused ahead of each write of a step over two runs while its run is purged, and wakes up,
// perhaps after a new run of the same id was granted. The step does not change the other run any more.
func TestPurgeUnderADriverThatIsPausedInAStep(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"purged": false, "purged and created again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paused, applied := true, 0
			for at := 1; paused; at++ {
				s := newFaulty(t)
				held := lead(t, s)
				paused = false
				then := 0
				err := step(t, s, held, func(n int) error {
					if n != at {
						return nil
					}
					paused = true
					if _, err := admin.Purge(t.Context(), s, preempting(held)); err != nil {
						t.Errorf("write %d: %v", n, err)
					}
					if then = stepsOfOther(t, s); !again {
						return nil
					}
					spec := runstore.LeaseSpec{Owner: "next", TTL: time.Minute}
					created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &spec})
					if err != nil || created.Lease.Token <= held.Token {
						t.Errorf("write %d: the new run: %+v, %v", n, created.Lease, err)
					}
					return nil
				})
				switch now := stepsOfOther(t, s); {
				case paused && now != then:
					t.Errorf("paused ahead of write %d: the step was applied to the other run %d times before the purge, and %d times after it", at, then, now)
				case err == nil && now != 1 || err != nil && runstore.OutcomeOf(err) == runstore.NotApplied && now != 0:
					t.Errorf("paused ahead of write %d: %v, and the step was applied to the other run %d times", at, err, now)
				case paused:
					applied += now
				}
			}
			if applied == 0 {
				t.Error("no purge completed a step")
			}
		})
	}
}

// A run whose step cannot be completed is not purged, and the next holder completes the step.
func TestPurgeThatCannotCompleteAStep(t *testing.T) {
	t.Parallel()
	s := newFaulty(t)
	held := lead(t, s)
	away := &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome}
	if err := step(t, s, held, func(n int) error {
		if n > 2 {
			return away
		}
		return nil
	}); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("the step: %v, want an unknown outcome", err)
	}
	s.commit = func(b runstore.Batch) (bool, error) {
		if b.Run() == "other" {
			return false, away
		}
		return true, nil
	}
	_, err := admin.Purge(t.Context(), s, preempting(held))
	if runstore.KindOf(err) != runstore.ErrUnavailable {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if got := stages(t, s); got != "" {
		t.Errorf("the stages are %q, want none", got)
	}
	head, err := s.GetRun(t.Context(), "run")
	if err != nil || head.Holder.Token != 0 || head.Token != held.Token+1 {
		t.Errorf("the run is %+v, %v; want it free", head, err)
	}
	s.commit = nil
	_, done, err := crossrun.Acquire(t.Context(), s, runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
	if err != nil || !done.Applied || stepsOfOther(t, s) != 1 {
		t.Errorf("the next holder: %+v, %v", done, err)
	}
}

// A purge is guarded by the absence of a step, like every purge of a run that may lead one.
func TestPurgeMeetsAStep(t *testing.T) {
	t.Parallel()
	s := newFaulty(t)
	s.commit = func(b runstore.Batch) (bool, error) {
		if b.Run() == admin.OperationsRun {
			intent := runstore.NewBatch("run", runstore.Unguarded("a test"))
			intent.Put(crossrun.IntentKey, []byte("a step"))
			if _, err := s.RunStore.Commit(t.Context(), intent); err != nil {
				t.Error(err)
			}
			s.commit = nil
		}
		return true, nil
	}
	_, err := admin.Purge(t.Context(), s, request)
	var conflict *runstore.ConflictError
	if !errors.As(err, &conflict) || conflict.Key != crossrun.IntentKey {
		t.Errorf("got %v, want a conflict with the intent", err)
	}
	if got := stages(t, s.RunStore); got != "intended failed" {
		t.Errorf("the stages are %q", got)
	}
	if _, err := s.GetRun(t.Context(), "run"); err != nil {
		t.Errorf("the run: %v", err)
	}
}
