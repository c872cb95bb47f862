package tape_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// theEffect fails the test unless the pair has exactly one effect in the runs, and returns it.
func theEffect(t *testing.T, s runstore.RunStore, what string, runs ...runstore.RunID) tape.Effect {
	t.Helper()
	tp := tape.New(s, nil)
	var all []tape.Effect
	for _, run := range runs {
		e, found, err := tp.GetEffect(t.Context(), run, string(run)+"/decision-0/pay/0")
		if err != nil {
			t.Fatal(err)
		}
		if found && e.BusinessKey == "invoice-1" {
			all = append(all, e)
		}
	}
	if len(all) != 1 {
		t.Fatalf("%s: %d effects, want one: %+v", what, len(all), all)
	}
	return all[0]
}

// marksOn returns how many marks of attempts a run has.
func marksOn(t *testing.T, s runstore.RunStore, run runstore.RunID) (n int) {
	t.Helper()
	for _, err := range runstore.Records(t.Context(), s, run, "business/") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// A creator is killed at each of its calls: before or after the store has made it, and the store's
// last words differ. Another run's caller and the next driver of its own run, in either order, find
// or begin one effect.
func TestCreatorsOfABusinessKeyAreKilled(t *testing.T) {
	t.Parallel()
	unavailable := &runstore.OpError{Op: "test", Err: runstore.ErrUnavailable}
	synctest.Test(t, func(t *testing.T) {
		for _, death := range []struct {
			name string
			fate
		}{
			{"before the call", fate{dies: true, err: errDead}},
			{"before the call, which is refused", fate{dies: true, err: unavailable}},
			{"after the call", fate{dies: true, makes: true, err: errDead}},
			{"with its context, before the call", fate{cancels: true}},
			{"with its context, after the call", fate{cancels: true, makes: true, err: errDead}},
		} {
			for i := range 16 {
				died := 0
				for _, variant := range []struct{ fenced, ownFirst bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
					what := fmt.Sprintf("killed at call %d, %s, %+v", i, death.name, variant)
					s := memory.New(nil).Open()
					tp := tape.New(single{s}, nil)
					a, b := begin(t, tp, "a"), begin(t, tp, "b")
					req := business(a.ID, "invoice-1")
					if variant.fenced {
						req.Fence = a.Lease.Fence()
					}
					ctx, cancel := context.WithCancel(t.Context())
					creator := &scripted{RunStore: s, cancel: cancel, script: func(n int) fate {
						if n == i {
							died++
							return death.fate
						}
						return fate{makes: true}
					}}
					_, err := tape.New(creator, nil).BeginEffect(ctx, req)
					cancel()
					_, begun, getErr := tp.GetEffect(t.Context(), a.ID, string(a.ID)+"/decision-0/pay/0")
					if getErr != nil {
						t.Fatal(getErr)
					}
					if outcome := runstore.OutcomeOf(err); begun && outcome == runstore.NotApplied || !begun && err == nil ||
						i < 3 && outcome != runstore.NotApplied { // the effect's own commit is the fourth call
						t.Errorf("%s: BeginEffect = %v, and the effect is there: %t", what, err, begun)
					}
					another := func() tape.Effect { return beginEffect(t, tp, business(b.ID, "invoice-1")) }
					successor := func() tape.Effect {
						again := business(a.ID, "invoice-1")
						again.Fence = begin(t, tp, "a").Lease.Fence()
						return beginEffect(t, tp, again)
					}
					first, second := another, successor
					if variant.ownFirst {
						first, second = successor, another
					}
					x, y := first(), second()
					if e := theEffect(t, s, what, a.ID, b.ID); x != e || y != e {
						t.Errorf("%s: got %+v, then %+v, want %+v", what, x, y, e)
					}
					if begun && x.Run != a.ID {
						t.Errorf("%s: the effect that was begun was not found", what)
					}
					// Only the mark of an attempt that was not registered stays.
					if left := marksOn(t, s, a.ID) + marksOn(t, s, b.ID); left > 0 && (left > 1 || i > 2) {
						t.Errorf("%s: %d marks are left", what, left)
					}
				}
				if died == 0 {
					if i < 4 {
						t.Errorf("%s: a creator makes %d calls only", death.name, i)
					}
					break
				}
			}
		}
	})
}

// Creators of two runs and two drivers of one run interleave call by call, die, and lose requests
// and replies. All that were answered were answered the same effect.
func TestCreatorsOfABusinessKeyInterleave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		voids := 0
		for seed := range uint64(600) {
			what := fmt.Sprintf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 1))
			s := memory.New(nil).Open()
			tp := tape.New(single{s}, nil)
			var sched schedule
			runs := []runstore.RunID{begin(t, tp, "a").ID, begin(t, tp, "b").ID, begin(t, tp, "c").ID}
			answers := make([]tape.Effect, 4)
			for i := range answers {
				req := business(runs[min(i, 2)], "invoice-1") // the last two are of one run
				if i == 3 {
					req.Fence = begin(t, tp, "c").Lease.Fence()
				}
				sched.add(s, func(store runstore.RunStore) {
					e, err := tape.New(store, nil).BeginEffect(t.Context(), req)
					answers[i] = e
					passes := errors.Is(err, runstore.ErrUnavailable) || errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, tape.ErrEffectExists)
					if err != nil && !passes {
						t.Errorf("%s: creator %d got %v", what, i, err)
					}
				})
			}
			current, chance := 0, random.IntN(20)
			sched.choose = func(n int) int {
				if current >= n || random.IntN(4) == 0 { // bursts: a creator that is passed by for long is voided
					current = random.IntN(n)
				}
				return current
			}
			sched.fate = func() fate {
				if random.IntN(100) >= chance {
					return fate{makes: true}
				}
				return fate{dies: random.IntN(2) == 0, makes: random.IntN(2) == 0, err: errDead}
			}
			voids += sched.run()
			runs = append(runs, begin(t, tp, "d").ID)
			last := beginEffect(t, tp, business(runs[3], "invoice-1"))
			if e := theEffect(t, s, what, runs...); last != e {
				t.Errorf("%s: a later caller got %+v, want %+v", what, last, e)
			}
			for i, e := range answers {
				if e.Key != "" && e != last {
					t.Fatalf("%s: creator %d got %+v, a later caller %+v", what, i, e, last)
				}
			}
		}
		if voids < 100 {
			t.Errorf("%d calls were refused a guard, want hundreds: the creators hardly met", voids)
		}
	})
}

// A creator is paused before its last call, which it makes when everything else is over.
func TestPausedCreatorsOfABusinessKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fenced bool
		// meanwhile is what happens during the pause.
		meanwhile func(t *testing.T, s *memory.Handle, a, b runstore.RunID)
		// want is the run of the effect that the paused creator is answered; empty for ErrFenced.
		want string
	}{
		"another run's caller": {false, func(t *testing.T, s *memory.Handle, _, b runstore.RunID) {
			beginEffect(t, tape.New(single{s}, nil), business(b, "invoice-1"))
		}, "b"},
		"another run's caller, at once": {false, func(t *testing.T, s *memory.Handle, _, b runstore.RunID) {
			beginEffect(t, tape.New(s, nil), business(b, "invoice-1"))
		}, "b"},
		"the next driver": {true, func(t *testing.T, s *memory.Handle, a, _ runstore.RunID) {
			tp := tape.New(single{s}, nil)
			req := business(a, "invoice-1")
			req.Fence = begin(t, tp, "a").Lease.Fence()
			beginEffect(t, tp, req)
		}, ""},
		"the next driver, who goes elsewhere": {true, func(t *testing.T, s *memory.Handle, _, b runstore.RunID) {
			tp := tape.New(single{s}, nil)
			begin(t, tp, "a")
			beginEffect(t, tp, business(b, "invoice-1"))
		}, ""},
		"a purge, and the run begins again": {false, func(t *testing.T, s *memory.Handle, a, b runstore.RunID) {
			tp := tape.New(single{s}, nil)
			purge := runstore.NewBatch(a, runstore.Unguarded("test"))
			purge.Purge = true
			if _, err := s.Commit(t.Context(), purge); err != nil {
				t.Error(err)
			}
			begin(t, tp, "a")
			beginEffect(t, tp, business(b, "invoice-1"))
		}, "b"},
		"an effect of the same key without a business key": {false, func(t *testing.T, s *memory.Handle, a, b runstore.RunID) {
			tp := tape.New(single{s}, nil)
			plain := business(a, "")
			beginEffect(t, tp, plain)
			beginEffect(t, tp, business(b, "invoice-1"))
		}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(nil).Open()
				tp := tape.New(single{s}, nil)
				a, b := begin(t, tp, "a"), begin(t, tp, "b")
				req := business(a.ID, "invoice-1")
				if c.fenced {
					req.Fence = a.Lease.Fence()
				}
				paused := &scripted{RunStore: s, script: func(n int) fate {
					if n == 3 { // mark, registry, registration; then the effect
						c.meanwhile(t, s, a.ID, b.ID)
					}
					return fate{makes: true}
				}}
				e, err := tape.New(paused, nil).BeginEffect(t.Context(), req)
				switch {
				case c.want == "" && !errors.Is(err, runstore.ErrFenced):
					t.Errorf("the paused creator got %+v, %v, want ErrFenced", e, err)
				case c.want != "" && (err != nil || e.Run != map[string]runstore.RunID{"a": a.ID, "b": b.ID}[c.want]):
					t.Errorf("the paused creator got %+v, %v, want the effect of %s", e, err, c.want)
				}
				theEffect(t, s, name, a.ID, b.ID)
			})
		})
	}
}

// A fenced creator wakes up before its last call and finds that its run was taken over. It writes
// nothing more: the mark stays until another caller meets the registration.
func TestFencedCreatorOfABusinessKeyWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil).Open()
		tp := tape.New(single{s}, nil)
		a, b := begin(t, tp, "a"), begin(t, tp, "b")
		req := business(a.ID, "invoice-1")
		req.Fence = a.Lease.Fence()
		zombie := &scripted{RunStore: s, script: func(n int) fate {
			if n == 3 {
				begin(t, tp, "a")
			}
			return fate{makes: true}
		}}
		if _, err := tape.New(zombie, nil).BeginEffect(t.Context(), req); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("the zombie got %v, want ErrFenced", err)
		}
		if marks := marksOn(t, s, a.ID); zombie.calls != 4 || marks != 1 {
			t.Errorf("the zombie made %d calls and left %d marks, want 4 calls and the mark of its attempt", zombie.calls, marks)
		}
		if e := beginEffect(t, tp, business(b.ID, "invoice-1")); e.Run != b.ID || marksOn(t, s, a.ID) != 0 {
			t.Errorf("another caller got %+v and left %d marks, want an effect of its own and none", e, marksOn(t, s, a.ID))
		}
	})
}

// A caller has waited for a creator and is about to void its attempt. In that moment the creator
// succeeds, or its run is purged.
func TestLastMomentOfACreatorOfABusinessKey(t *testing.T) {
	t.Parallel()
	// The caller's mark, the registry, the registration that conflicts, the mark's removal; then
	// eight looks of three reads.
	const void = 4 + 8*3
	for name, c := range map[string]struct {
		purge bool
		want  string
	}{"succeeds": {false, "a"}, "is purged": {true, "b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(nil).Open()
				tp := tape.New(single{s}, nil)
				a, b := begin(t, tp, "a"), begin(t, tp, "b")
				other, resume, over := make(chan bool), make(chan bool), make(chan bool)
				creator := &scripted{RunStore: s, script: func(n int) fate {
					if n == 3 {
						other <- true
						<-resume
					}
					return fate{makes: true}
				}}
				var first tape.Effect
				var err error
				go func() {
					first, err = tape.New(creator, nil).BeginEffect(t.Context(), business(a.ID, "invoice-1"))
					close(over)
				}()
				<-other
				caller := &scripted{RunStore: s, script: func(n int) fate {
					if n == void && c.purge {
						purge := runstore.NewBatch(a.ID, runstore.Unguarded("test"))
						purge.Purge = true
						if _, err := s.Commit(t.Context(), purge); err != nil {
							t.Error(err)
						}
					} else if n == void {
						close(resume)
						<-over
					}
					return fate{makes: true}
				}}
				e := beginEffect(t, tape.New(caller, nil), business(b.ID, "invoice-1"))
				if c.purge {
					close(resume)
					<-over
					if !errors.Is(err, tape.ErrNoSuchRun) {
						t.Errorf("the creator got %+v, %v, want ErrNoSuchRun", first, err)
					}
				} else if err != nil || first != e {
					t.Errorf("the creator got %+v, %v, the caller %+v", first, err, e)
				}
				if want := map[string]runstore.RunID{"a": a.ID, "b": b.ID}[c.want]; e.Run != want || caller.calls <= void {
					t.Errorf("the caller got %+v after %d calls, want the effect of %s", e, caller.calls, c.want)
				}
				theEffect(t, s, name, a.ID, b.ID)
			})
		})
	}
}

// refusing is a MultiCommitter that cannot commit these two runs at once.
type refusing struct{ *scripted }

func (refusing) CommitMulti(context.Context, []runstore.Batch) ([]runstore.Committed, error) {
	return nil, &runstore.OpError{Op: "test", Err: runstore.ErrUnsupported}
}

func TestBusinessKeyWhereMultiCommitIsUnsupported(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	a, b := begin(t, inner, "a"), begin(t, inner, "b")
	tp := tape.New(refusing{&scripted{RunStore: s, script: func(int) fate { return fate{makes: true} }}}, nil)
	first := beginEffect(t, tp, business(a.ID, "invoice-1"))
	if e := beginEffect(t, tp, business(b.ID, "invoice-1")); e != first || e.Run != a.ID {
		t.Errorf("got %+v, want %+v", e, first)
	}
}

// The run with the effect is purged, and then the registry, too, while a caller is at work.
func TestBusinessKeyOfAPurgedRegistry(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	purge := func(run runstore.RunID) {
		b := runstore.NewBatch(run, runstore.Unguarded("test"))
		b.Purge = true
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	spy := &scripted{RunStore: s}
	var registry runstore.RunID
	spying := &creations{scripted: spy, created: func(run runstore.RunID) { registry = run }}
	spy.script = func(n int) fate { return fate{makes: true} }
	beginEffect(t, tape.New(spying, nil), business(a.ID, "invoice-1"))
	purge(a.ID)
	spy.calls = 0
	spy.script = func(n int) fate {
		if n == 8 { // the second attempt has put its mark
			purge(registry)
		}
		return fate{makes: true}
	}
	if e := beginEffect(t, tape.New(spying, nil), business(b.ID, "invoice-1")); e.Run != b.ID {
		t.Errorf("got %+v, want an effect of the second run", e)
	}
	if marks := marksOn(t, s, b.ID); marks != 0 || spy.calls <= 8 {
		t.Errorf("%d marks are left, and %d calls were made", marks, spy.calls)
	}
}

// creations reports the runs that are created.
type creations struct {
	*scripted
	created func(run runstore.RunID)
}

func (s *creations) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	s.created(spec.ID)
	return s.scripted.CreateRun(ctx, spec)
}

// A pair whose run was refused for its own reasons is free, at once, for the next caller.
func TestRefusedCreatorLeavesThePairFree(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(single{s}, nil)
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	full := &scripted{RunStore: s, script: func(n int) fate {
		if n == 3 {
			return fate{err: &runstore.InputError{Kind: runstore.ErrTooLarge, Field: "records", Problem: "test"}}
		}
		return fate{makes: true}
	}}
	if _, err := tape.New(full, nil).BeginEffect(t.Context(), business(a.ID, "invoice-1")); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("a full run: %v, want ErrTooLarge", err)
	}
	c := &counter{RunStore: s}
	if e := beginEffect(t, tape.New(c, nil), business(b.ID, "invoice-1")); e.Run != b.ID {
		t.Errorf("%+v, want an effect of the second run", e)
	}
	if marks := marksOn(t, s, a.ID); marks != 0 {
		t.Errorf("%d marks are left", marks)
	}
	// The attempt that meets the registration, a look at it, its mark and its effect, and the next attempt.
	if got, want := fmt.Sprint(c.take()), "[commit create commit commit records records records commit commit commit]"; got != want {
		t.Errorf("calls %s, want %s: no pause", got, want)
	}
}
