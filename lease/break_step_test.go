package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// heldLead makes a run that an agent holds and the other run of a step.
func heldLead(t *testing.T, s runstore.RunStore) runstore.Lease {
	t.Helper()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	return heldRun(t, s)
}

// makeStep appends an event to each of the two runs, through s, which calls before ahead of the step's
// write number n. An error of before is the reply, and the write is lost.
func makeStep(ctx context.Context, s runstore.RunStore, held runstore.Lease, before func(n int) error) error {
	n := 0
	through := &hooked{RunStore: s, commit: func(next func() (runstore.Committed, error)) (runstore.Committed, error) {
		n++
		if err := before(n); err != nil {
			return runstore.Committed{}, err
		}
		return next()
	}}
	lead, other := runstore.NewBatch("run", held.Fence()), runstore.NewBatch("other", runstore.AtSeq(1))
	lead.Append("step", nil)
	other.Append("step", nil)
	_, err := crossrun.Commit(ctx, through, lead, other)
	return err
}

// stepsOf returns how often the step was applied to the lead and to the other run, and whether it is in
// progress.
func stepsOf(t *testing.T, s runstore.RunStore) (lead, other int, inProgress bool) {
	t.Helper()
	for _, e := range journalOf(t, s) {
		if e.Kind == "step" {
			lead++
		}
	}
	head, err := s.GetRun(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	intents, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{crossrun.IntentKey}})
	if err != nil {
		t.Fatal(err)
	}
	return lead, int(head.LastSeq), len(intents) > 0
}

var errAway = &runstore.OpError{Op: "commit", Err: runstore.ErrUnavailable}

// A holder is paused ahead of each write of a step over two runs while its lease is broken, and wakes
// up. The step changes nothing behind the break, also if a successor that completes no step acquires
// the lease right after the grant of the break, and if the break is cancelled there.
func TestBreakOfAHolderThatIsPausedInAStep(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]func(t *testing.T, s runstore.RunStore, cancel func()){
		"alone":     func(*testing.T, runstore.RunStore, func()) {},
		"cancelled": func(_ *testing.T, _ runstore.RunStore, cancel func()) { cancel() },
		"with a successor": func(t *testing.T, s runstore.RunStore, _ func()) {
			_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}})
			if err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paused := true
			for at := 1; paused; at++ {
				s := memory.New(nil).Open()
				old := heldLead(t, s)
				paused = false
				var lead, other int
				err := makeStep(t.Context(), s, old, func(n int) error {
					if n != at {
						return nil
					}
					paused = true
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					operator := &hooked{RunStore: s, acquire: func(_ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
						defer behind(t, s, cancel)
						return next()
					}}
					if broken, err := lease.Break(ctx, operator, breaking(old.Token)); err != nil || broken.Token != 2 {
						t.Errorf("write %d: got %+v, %v; want token 2", n, broken, err)
					}
					lead, other, _ = stepsOf(t, s)
					return nil
				})
				nowLead, nowOther, inProgress := stepsOf(t, s)
				if paused && (nowLead != lead || nowOther != other) || nowLead != nowOther || inProgress {
					t.Errorf("paused ahead of write %d: the runs had %d and %d events of the step behind the break, and have %d and %d; in progress: %t",
						at, lead, other, nowLead, nowOther, inProgress)
				}
				if at == 2 && (nowOther != 0 || !errors.Is(err, runstore.ErrFenced)) {
					t.Errorf("paused ahead of the intent: %v, and the step was made %d times", err, nowOther)
				}
				if !paused && at < 5 {
					t.Errorf("the step makes %d writes", at-1)
				}
			}
		})
	}
}

// A break that cannot complete its holder's step reports so, and a break of its own token completes it.
func TestBreakThatCannotCompleteAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil).Open()
		old := heldLead(t, s)
		err := makeStep(t.Context(), s, old, func(n int) error {
			if n > 2 {
				return errAway
			}
			return nil
		})
		if !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Fatalf("the step: %v, want an unknown outcome", err)
		}
		away := &hooked{RunStore: s, commit: func(func() (runstore.Committed, error)) (runstore.Committed, error) {
			return runstore.Committed{}, errAway
		}}
		for token := old.Token; token < old.Token+2; token++ {
			broken, err := lease.Break(t.Context(), away, breaking(token))
			if !errors.Is(err, runstore.ErrUnknownOutcome) || broken.Token != token+1 {
				t.Errorf("got %+v, %v; want the new token and an unknown outcome", broken, err)
			}
			if _, _, inProgress := stepsOf(t, s); !inProgress || headOf(t, s).Token != token+1 {
				t.Errorf("in progress: %t, the head is %+v", inProgress, headOf(t, s))
			}
		}
		if _, err := lease.Break(t.Context(), s, breaking(old.Token+2)); err != nil {
			t.Error(err)
		}
		if lead, other, inProgress := stepsOf(t, s); lead != 1 || other != 1 || inProgress {
			t.Errorf("the step was made %d and %d times; in progress: %t", lead, other, inProgress)
		}
		if head := headOf(t, s); head.Holder != (runstore.Holder{}) {
			t.Errorf("the head is %+v, want a free lease", head)
		}
	})
}

// A run that is purged right after the grant of a break leads no step.
func TestBreakOfARunThatIsPurged(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	old := heldRun(t, s)
	operator := &hooked{RunStore: s, acquire: func(_ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
		granted, err := next()
		purge := runstore.NewBatch("run", runstore.Unguarded("test"))
		purge.Purge = true
		if _, err := s.Commit(t.Context(), purge); err != nil {
			t.Error(err)
		}
		return granted, err
	}}
	if broken, err := lease.Break(t.Context(), operator, breaking(old.Token)); err != nil || broken.Token != 2 {
		t.Errorf("got %+v, %v; want token 2", broken, err)
	}
}
