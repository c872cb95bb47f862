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

// failing is a store whose commit number at fails with kind, before or after it
// was made. It is no MultiCommitter.
type failing struct {
	runstore.RunStore
	at   int
	kind error
	made bool
}

func (s *failing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at != 0 {
		return s.RunStore.Commit(ctx, b)
	}
	if s.made {
		if done, err := s.RunStore.Commit(ctx, b); err != nil {
			return done, err
		}
	}
	return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: s.kind, Cause: context.DeadlineExceeded}
}

// TestErrorPaths says of an error at each write what Commit makes of it, and that
// this is true.
func TestErrorPaths(t *testing.T) {
	t.Parallel()
	const unavailable, unknown, none = "unavailable", "unknown outcome", "<nil>"
	for _, test := range []struct {
		kind error
		made bool
		// want are the answers to an error at the first write, the second…
		want []string
		// applied reports whether the step is applied in the end.
		applied []bool
	}{
		{runstore.ErrUnavailable, false, []string{unavailable, unavailable, unknown, unknown, none}, []bool{false, false, true, true, true}},
		{runstore.ErrUnknownOutcome, false, []string{unavailable, unknown, unknown, unknown, none}, []bool{false, false, true, true, true}},
		{runstore.ErrUnknownOutcome, true, []string{unavailable, unknown, unknown, unknown, none}, []bool{false, true, true, true, true}},
	} {
		for i, want := range test.want {
			t.Run(fmt.Sprintf("%v at write %d, made %t", test.kind, i+1, test.made), func(t *testing.T) {
				base := memory.New(nil).Open()
				create(t, base, "run", "registry")
				lease := hold(t, base, "run")
				lead, other := claim(lease)
				_, err := crossrun.Commit(t.Context(), &failing{base, i + 1, test.kind, test.made}, lead, other)
				if got := fmt.Sprint(runstore.KindOf(err)); got != want {
					t.Errorf("got error %v (%v), want %s", got, err, want)
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v does not tell of the context's end", err)
				}
				if _, err := crossrun.Recover(t.Context(), base, lease.Fence()); err != nil {
					t.Fatalf("recover: %v", err)
				}
				made := map[bool]int{true: 1}[test.applied[i]]
				if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{made, made} {
					t.Errorf("the step was made %d times, want %d on both runs", got, made)
				}
				if _, err := crossrun.Sweep(t.Context(), base, "registry"); err != nil {
					t.Errorf("sweep: %v", err)
				}
				clean(t, base, "run", "registry")
			})
		}
	}
}

// unreachable is a store with a run that cannot be reached.
type unreachable struct {
	runstore.RunStore
	run runstore.RunID
}

func (s unreachable) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if b.Run() == s.run {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnavailable}
	}
	return s.RunStore.Commit(ctx, b)
}

// TestUnreachableRun proves that a step whose other run cannot be reached stays
// under way, keeps others from the lead's records, and ends when the run is back.
func TestUnreachableRun(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry", "third")
	lead, other := claim(hold(t, base, "run"))
	if _, err := crossrun.Commit(ctx, &dying{base, 2}, lead, other); !errors.Is(err, runstore.ErrUnknownOutcome) {
		t.Fatalf("got error %v, want an unknown outcome", err)
	}
	away := unreachable{base, "registry"}
	lease, _, err := crossrun.Acquire(ctx, away, preempt("run", "next"))
	if !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, runstore.ErrUnknownOutcome) || lease.Token == 0 {
		t.Errorf("acquire: lease %+v, error %v; want a lease and that the step is under way", lease, err)
	}
	signal := runstore.NewBatch("run", crossrun.Idle())
	signal.Put("name", []byte("meanwhile"))
	if _, err := base.Commit(ctx, signal); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a batch that is guarded with Idle: got error %v, want a conflict", err)
	}
	// A step of the holder's own has to wait too, and is surely not applied.
	own := runstore.NewBatch("run", lease.Fence())
	third := runstore.NewBatch("third", runstore.AtVersion("n", 0))
	if _, err := crossrun.Commit(ctx, away, own, third); runstore.KindOf(err) != runstore.ErrUnavailable {
		t.Errorf("another step: got error %v, want unavailable", err)
	}
	completed, err := crossrun.Recover(ctx, base, lease.Fence())
	if err != nil || !completed.Applied || completed.Other != "registry" || completed.Result.Lead.LastSeq != 1 {
		t.Errorf("recover: %+v, %v; want that the step was applied", completed, err)
	}
}

// TestNewerFormat proves that an intent of a newer version is not cleared.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lease := hold(t, base, "run")
	for _, value := range []string{"", "\x00", "\x02new", "\x01", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x05short"} {
		b := runstore.NewBatch("run", lease.Fence())
		b.Put(crossrun.IntentKey, []byte(value))
		if _, err := base.Commit(ctx, b); err != nil {
			t.Fatal(err)
		}
		if _, err := crossrun.Recover(ctx, base, lease.Fence()); !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("recover of %q: got error %v, want unsupported", value, err)
		}
		lead, other := claim(lease)
		if _, err := crossrun.Commit(ctx, base, lead, other); !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("commit beside %q: got error %v, want unsupported", value, err)
		}
	}
}

// late is a store before whose commit number at something else happens, and which
// remembers no batch from before. It is no MultiCommitter.
type late struct {
	runstore.RunStore
	at        int
	meanwhile func()
}

func (s *late) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.at--; s.at == 0 {
		s.meanwhile()
		b.ID = ""
	}
	return s.RunStore.Commit(ctx, b)
}

// TestLateFinish proves that a step is not finished twice by two processes under
// one lease, even when the lead has forgotten the step's id.
func TestLateFinish(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lease := hold(t, base, "run")
	lead, other := claim(lease)
	_, err := crossrun.Commit(ctx, &late{base, 4, func() {
		if completed, err := crossrun.Recover(ctx, base, lease.Fence()); err != nil || !completed.Applied {
			t.Errorf("recover: %+v, %v", completed, err)
		}
	}}, lead, other)
	if runstore.KindOf(err) != runstore.ErrUnknownOutcome {
		t.Errorf("got error %v, want an unknown outcome: the result is forgotten", err)
	}
	if n := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; n != [2]int{1, 1} {
		t.Errorf("the step was made %d times, want once on both runs", n)
	}
}

// TestTokenGuard proves that a step refuses a guard of the token, which it could not keep, before it
// writes anything.
func TestTokenGuard(t *testing.T) {
	t.Parallel()
	for _, multi := range []bool{true, false} {
		for _, test := range []struct {
			field  string
			change func(lead, other *runstore.Batch)
		}{
			{"lead.guards: token", func(lead, _ *runstore.Batch) { lead.Require(runstore.AtToken(99)) }},
			{"other.guards: token", func(_, other *runstore.Batch) { other.Require(runstore.AtToken(99)) }},
			{"other.guards: token", func(_, other *runstore.Batch) {
				*other = runstore.NewBatch(other.Run(), runstore.AtToken(0))
			}},
		} {
			base := memory.New(nil).Open()
			create(t, base, "run", "registry")
			lead, other := claim(hold(t, base, "run"))
			test.change(&lead, &other)
			store := runstore.RunStore(base)
			if !multi {
				store = &failing{RunStore: base}
			}
			_, err := crossrun.Commit(t.Context(), store, lead, other)
			var input *runstore.InputError
			if !errors.As(err, &input) || input.Kind != runstore.ErrInvalid || input.Field != test.field {
				t.Errorf("as one write %t: got error %v, want that the field %q is invalid", multi, err, test.field)
			}
			if got := [2]int{claims(t, base, "run"), claims(t, base, "registry")}; got != [2]int{} {
				t.Errorf("%s, as one write %t: the step was made %d times, want none", test.field, multi, got)
			}
			clean(t, base, "run", "registry")
		}
	}
}
