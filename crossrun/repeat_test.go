package crossrun_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// settled is a store, no MultiCommitter, whose caller another one overtakes: before commit number at it
// settles the steps of run, on base.
type settled struct {
	runstore.RunStore
	base runstore.RunStore
	at   int
}

func (s *settled) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at == 0 {
		if _, err := crossrun.Settle(ctx, s.base, "run"); err != nil {
			return runstore.Committed{}, err
		}
	}
	return s.RunStore.Commit(ctx, b)
}

// unguarded are steps whose lead guards nothing that they write.
var unguarded = map[string]func(runstore.Lease) (lead, other runstore.Batch){
	"the other run's guard is moved": func(lease runstore.Lease) (lead, other runstore.Batch) {
		_, other = claim(lease)
		return runstore.NewBatch(lease.Run, lease.Fence()), other
	},
	"nothing that the step guards is moved": func(lease runstore.Lease) (lead, other runstore.Batch) {
		other = runstore.NewBatch("registry", runstore.AtVersion("elsewhere", 0))
		other.Append("claimed", nil)
		return runstore.NewBatch(lease.Run, lease.Fence()), other
	},
}

// checkMadeOnce checks that a step was made once on each of its runs, and that Sweep leaves nothing of it: a
// call that was cut short may have left its mark.
func checkMadeOnce(t *testing.T, base runstore.RunStore) {
	t.Helper()
	if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{1, 1} {
		t.Errorf("the step was made %d times, want once on each run", got)
	}
	if _, err := crossrun.Sweep(t.Context(), base, "registry"); err != nil {
		t.Error(err)
	}
	clean(t, base, "run", "registry")
}

// TestRepeatOfAStepThatEndsMeanwhile proves that a repeat applies nothing if another caller completes the
// first call's step while the repeat is on its way, also where the lead's guards would hold again.
func TestRepeatOfAStepThatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, step := range unguarded {
		for made := range 8 { // writes of the first call
			for at := 1; at <= 9; at++ { // the write of the repeat before which the step is settled
				t.Run(fmt.Sprintf("%s, the first call makes %d writes, settled before write %d of the repeat", name, made, at), func(t *testing.T) {
					t.Parallel()
					base := memory.New(nil).Open()
					create(t, base, "run", "registry")
					lead, other := step(hold(t, base, "run"))
					lead.Append("claimed", nil)
					lead.ID = "step"
					_, first := crossrun.Commit(ctx, &dying{base, made}, lead, other)
					repeat, err := crossrun.Commit(ctx, &settled{base, base, at}, lead, other)
					if err != nil {
						t.Errorf("the first call ended with %v, its repeat with %v, want success", first, err)
					}
					if repeat.Lead.FirstSeq != 1 || repeat.Lead.LastSeq != 1 {
						t.Errorf("the repeat appended events %d to %d, want event 1", repeat.Lead.FirstSeq, repeat.Lead.LastSeq)
					}
					checkMadeOnce(t, base)
				})
			}
		}
	}
}

// forgotten is a store that has forgotten the ids of all batches.
type forgotten struct{ runstore.RunStore }

func (s forgotten) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	b.ID = ""
	return s.RunStore.Commit(ctx, b)
}

// TestRepeatThatIsCutShort proves that a successor applies nothing again after a repeat of a step, which ends
// meanwhile, was cut short, even if the lead no longer remembers the step.
func TestRepeatThatIsCutShort(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, step := range unguarded {
		for made := range 9 * 8 { // writes of the repeat before one that fails
			made, again, reached, left := made/8, made%2 == 1, made/2%2 == 1, made/4%2 == 1
			for first := 4; first <= 5; first++ { // writes of the first call
				for at := 1; at <= 8; at++ { // the write of the repeat before which the step is settled
					t.Run(fmt.Sprintf("%s, the first call makes %d writes, settled before write %d of the repeat, mark left %t, it makes %d writes, the next one made %t, repeated again %t",
						name, first, at, left, made, reached, again), func(t *testing.T) {
						t.Parallel()
						base := memory.New(nil).Open()
						create(t, base, "run", "registry")
						lead, other := step(hold(t, base, "run"))
						lead.Append("claimed", nil)
						lead.ID = "step"
						if _, err := crossrun.Commit(ctx, &dying{base, first}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
							t.Errorf("got error %v, want an unknown outcome", err)
						}
						settler := runstore.RunStore(base)
						if left {
							settler = &dying{base, 3}
						}
						cut := &settled{&failing{base, made + 1, runstore.ErrUnknownOutcome, reached}, settler, at}
						_, err := crossrun.Commit(ctx, cut, lead, other)
						if err != nil && !errors.Is(err, runstore.ErrUnknownOutcome) && !errors.Is(err, runstore.ErrUnavailable) {
							t.Errorf("the repeat ended with %v, want success or an error that says nothing of the first call", err)
						}
						if again && err != nil {
							if _, err = crossrun.Commit(ctx, struct{ runstore.RunStore }{base}, lead, other); err != nil {
								t.Errorf("the last repeat: %v", err)
							}
						}
						hold(t, forgotten{base}, "run")
						checkMadeOnce(t, base)
					})
				}
			}
		}
	}
}

// refusing is a store that evaluates no write, because its new connections are refused.
type refusing struct {
	runstore.RunStore
	err    error
	writes int
}

func (s *refusing) Commit(_ context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.writes++
	return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: s.err}
}

func (s *refusing) CommitMulti(context.Context, []runstore.Batch) ([]runstore.Committed, error) {
	s.writes++
	return nil, &runstore.OpError{Op: "commit", Err: s.err}
}

// A repeat that the store has not evaluated does not say that nothing of its step is stored.
func TestRepeatThatIsNotEvaluated(t *testing.T) {
	t.Parallel()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lead, other := claim(hold(t, base, "run"))
	lead.ID = "step"
	if _, err := crossrun.Commit(t.Context(), base, lead, other); err != nil {
		t.Fatal(err)
	}
	invalid := &runstore.InputError{Kind: runstore.ErrInvalid, Field: "default_transaction_isolation", Problem: "is repeatable read for this role"}
	for name, s := range map[string]runstore.RunStore{
		"as one write": &refusing{RunStore: base, err: invalid},
		"by intent":    struct{ runstore.RunStore }{&refusing{RunStore: base, err: invalid}},
	} {
		_, err := crossrun.Commit(t.Context(), s, lead, other)
		if errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, runstore.ErrUnavailable) {
			continue
		}
		t.Errorf("%s: got %v, want an error that says nothing of the first call", name, err)
	}
}

// A commit over two runs whose outcome is unknown is not made again by intent, although its error also says
// that the store does not support something: a connection that was to settle it was refused.
func TestUnknownOutcomeIsNotAnUnsupportedCommit(t *testing.T) {
	t.Parallel()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lead, other := claim(hold(t, base, "run"))
	s := &refusing{RunStore: base, err: errors.Join(runstore.ErrUnknownOutcome, runstore.ErrUnsupported)}
	if _, err := crossrun.Commit(t.Context(), s, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) || s.writes != 1 {
		t.Errorf("got %v after %d writes, want an unknown outcome after one", err, s.writes)
	}
}

// TestRepeatOfAStepWhoseMarkIsLeft proves that a repeat of an acknowledged step whose mark was left behind
// leaves nothing that a successor could apply, even if the lead no longer remembers the step.
func TestRepeatOfAStepWhoseMarkIsLeft(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, step := range unguarded {
		for made := range 8 {
			for _, reached := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, the repeat makes %d writes, the next one made %t", name, made, reached), func(t *testing.T) {
					t.Parallel()
					base := memory.New(nil).Open()
					create(t, base, "run", "registry")
					lead, other := step(hold(t, base, "run"))
					lead.Append("claimed", nil)
					lead.ID = "step"
					if _, err := crossrun.Commit(ctx, &dying{base, 6}, lead, other); err != nil {
						t.Fatalf("the first call: %v", err)
					}
					if _, err := crossrun.Commit(ctx, &failing{base, made + 1, runstore.ErrUnknownOutcome, reached}, lead, other); err != nil && made > 0 {
						t.Errorf("the repeat: %v, want the first result", err)
					}
					hold(t, forgotten{base}, "run")
					checkMadeOnce(t, base)
				})
			}
		}
	}
}

// TestRepeatMeetsAMarkOfANewerVersion proves that a mark that cannot be read blocks no step.
func TestRepeatMeetsAMarkOfANewerVersion(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lead, other := claim(hold(t, base, "run"))
	lead.ID = "step"
	if _, err := crossrun.Commit(ctx, &dying{base, 2}, lead, other); err == nil {
		t.Fatal("the call that makes the mark was not cut short")
	}
	marks, err := base.ReadRecords(ctx, "registry", runstore.RecordQuery{Prefix: crossrun.Reserved, Limit: 2})
	if err != nil || len(marks) != 1 {
		t.Fatalf("%d marks, %v, want one", len(marks), err)
	}
	b := runstore.NewBatch("registry", runstore.AtVersion(marks[0].Key, marks[0].Version))
	b.Put(marks[0].Key, []byte{2})
	if _, err := base.Commit(ctx, b); err != nil {
		t.Fatal(err)
	}
	if _, err := crossrun.Commit(ctx, struct{ runstore.RunStore }{base}, lead, other); err != nil {
		t.Error(err)
	}
	if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{1, 1} {
		t.Errorf("the step was made %d times, want once on each run", got)
	}
	clean(t, base, "run", "registry")
}

// keeping is a store, no MultiCommitter, that keeps commit number at instead of making it.
type keeping struct {
	runstore.RunStore
	at   int
	kept runstore.Batch
}

func (s *keeping) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at == 0 {
		s.kept = b
		return runstore.Committed{}, runstore.ErrUnknownOutcome
	}
	return s.RunStore.Commit(ctx, b)
}

// TestRefusalOfARepeatIsFinal proves that nothing is applied after a repeat was refused by the lead, even if
// the intent of the first call arrives after that and the lead's guards hold again. If the repeat cannot
// prevent that, it ends with an unknown outcome.
func TestRefusalOfARepeatIsFinal(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("the repeat cannot delete the mark %t", cut), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			base := memory.New(nil).Open()
			create(t, base, "run", "registry")
			lead, other := claim(hold(t, base, "run"))
			lead.Require(runstore.AtVersion("busy", 0))
			lead.ID = "step"
			first := &keeping{RunStore: base, at: 4}
			if _, err := crossrun.Commit(ctx, first, lead, other); err == nil {
				t.Fatal("the first call was not cut short")
			}
			change := func(do func(*runstore.Batch)) {
				b := runstore.NewBatch("run", runstore.Unguarded("test"))
				do(&b)
				if _, err := base.Commit(ctx, b); err != nil {
					t.Error(err)
				}
			}
			change(func(b *runstore.Batch) { b.Put("busy", nil) })
			repeats, want := runstore.RunStore(struct{ runstore.RunStore }{base}), runstore.ErrConflict
			if cut {
				repeats, want = &failing{base, 5, runstore.ErrUnavailable, false}, runstore.ErrUnknownOutcome
			}
			if _, err := crossrun.Commit(ctx, repeats, lead, other); !errors.Is(err, want) {
				t.Errorf("the repeat: %v, want %v", err, want)
			}
			if cut {
				return
			}
			change(func(b *runstore.Batch) { b.Delete("busy") })
			if _, err := base.Commit(ctx, first.kept); err != nil {
				t.Errorf("the intent that arrives late: %v", err)
			}
			if _, err := crossrun.Settle(ctx, base, "run"); err != nil {
				t.Error(err)
			}
			if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{0, 0} {
				t.Errorf("the step was made %d times after it was refused", got)
			}
			clean(t, base, "run", "registry")
		})
	}
}

// changing is a store that calls do before commit number at; do may replace the store.
type changing struct {
	runstore.RunStore
	do map[int]func(*changing)
	at int
}

func (s *changing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.at++
	if do := s.do[s.at]; do != nil {
		do(s)
	}
	return s.RunStore.Commit(ctx, b)
}

// earlier makes a step whose lead remembers it, and lets a repeat by an earlier version of the package write an
// intent that could apply the step again: that version did not ask between its writes 0 and 1.
func earlier(t *testing.T) runstore.RunStore {
	t.Helper()
	ctx := t.Context()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lead, other := unguarded["nothing that the step guards is moved"](hold(t, base, "run"))
	lead.Append("claimed", nil)
	lead.ID = "step"
	if _, err := crossrun.Commit(ctx, &dying{base, 4}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("got error %v, want an unknown outcome", err)
	}
	repeat := &changing{RunStore: base, do: map[int]func(*changing){
		2: func(*changing) { // the repeat has found that its result is not known
			if _, err := crossrun.Settle(ctx, base, "run"); err != nil {
				t.Error(err)
			}
		},
		3: func(s *changing) { s.RunStore = forgotten{base} },
		4: func(s *changing) { s.RunStore = &dying{base, 1} },
	}}
	if _, err := crossrun.Commit(ctx, repeat, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Errorf("the repeat: %v, want an unknown outcome", err)
	}
	return base
}

// TestIntentOfAnEarlierVersion proves that a caller that completes an intent applies nothing if the lead
// remembers the step, whichever version of the package wrote the intent.
func TestIntentOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	base := earlier(t)
	hold(t, base, "run")
	if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{1, 1} {
		t.Errorf("the step was made %d times, want once on each run", got)
	}
	clean(t, base, "run", "registry")
}

// TestRepeatThatIsForgottenOnItsWay proves that no step is half made if the lead no longer remembers it after a
// caller has read its result, and another caller applies the intent of an earlier version on the other run.
func TestRepeatThatIsForgottenOnItsWay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base := earlier(t)
	completing := &changing{RunStore: base, do: map[int]func(*changing){
		2: func(s *changing) { // it knows the result
			s.RunStore = forgotten{base}
			if _, err := crossrun.Settle(ctx, &dying{s.RunStore, 2}, "run"); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("Settle = %v, want it cut short", err)
			}
		},
	}}
	if _, err := crossrun.Settle(ctx, completing, "run"); err != nil {
		t.Error(err)
	}
	if n, m := claims(t, base, "run"), claims(t, base, "registry"); n != m {
		t.Errorf("the step was made %d times on the lead and %d times on the other run", n, m)
	}
	clean(t, base, "run", "registry")
}

// TestReleaseOfAnEarlierGrant proves that a step that releases the lease ends the grant under which it
// was begun, and none that came later.
func TestReleaseOfAnEarlierGrant(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	begun := func(t *testing.T) (runstore.RunStore, runstore.Lease) {
		base := memory.New(nil).Open()
		create(t, base, "run", "registry")
		lease := hold(t, base, "run")
		lead, other := claim(lease)
		lead.Release = true
		if _, err := crossrun.Commit(ctx, &dying{base, 2}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Fatalf("got error %v, want an unknown outcome", err)
		}
		return base, lease
	}
	write := func(s runstore.RunStore, lease runstore.Lease) error {
		b := runstore.NewBatch("run", lease.Fence(), crossrun.Idle())
		b.Append("next", nil)
		_, err := s.Commit(ctx, b)
		return err
	}
	complete := map[string]func(*testing.T, runstore.RunStore) runstore.Lease{
		"by the successor": func(t *testing.T, s runstore.RunStore) runstore.Lease { return hold(t, s, "run") },
		"by another caller": func(t *testing.T, s runstore.RunStore) runstore.Lease {
			granted, err := s.AcquireLease(ctx, preempt("run", "successor"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := crossrun.Settle(ctx, s, "run"); err != nil {
				t.Fatal(err)
			}
			return granted.Lease
		},
	}
	for name, completed := range complete {
		t.Run("completed "+name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			if err := write(s, completed(t, s)); err != nil {
				t.Errorf("the successor's write: %v", err)
			}
			if n := claims(t, s, "run"); n != 2 {
				t.Errorf("the journal has %d events, want that of the step and the successor's", n)
			}
		})
	}
	t.Run("completed while the grant is current", func(t *testing.T) {
		t.Parallel()
		s, lease := begun(t)
		if _, err := crossrun.Settle(ctx, s, "run"); err != nil {
			t.Fatal(err)
		}
		if err := write(s, lease); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("a write under the released grant: %v, want ErrFenced", err)
		}
	})
}
