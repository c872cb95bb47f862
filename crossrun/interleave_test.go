package crossrun_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

const ttl = runstore.MaxTTL

func create(t testing.TB, s runstore.RunStore, ids ...runstore.RunID) {
	t.Helper()
	for _, id := range ids {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
}

func preempt(id runstore.RunID, owner runstore.Owner) runstore.AcquireRequest {
	return runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: ttl, Grant: runstore.NewGrantID()}, Preempt: "test",
	}
}

func hold(t testing.TB, s runstore.RunStore, id runstore.RunID) runstore.Lease {
	t.Helper()
	lease, _, err := crossrun.Acquire(t.Context(), s, preempt(id, "holder"))
	if err != nil {
		t.Fatal(err)
	}
	return lease.Lease
}

// claim is a step that claims a name on the registry for the lead.
func claim(lease runstore.Lease) (lead, other runstore.Batch) {
	lead = runstore.NewBatch(lease.Run, lease.Fence(), runstore.AtVersion("name", 0))
	lead.Append("claimed", nil)
	lead.Put("name", []byte("n"))
	other = runstore.NewBatch("registry", runstore.AtVersion("n", 0))
	other.Append("claimed", nil)
	other.Put("n", []byte(lease.Run))
	return lead, other
}

// clean fails the test if a record of the package is left on one of the runs.
func clean(t testing.TB, s runstore.RunStore, ids ...runstore.RunID) {
	t.Helper()
	for _, id := range ids {
		for rec, err := range runstore.Records(t.Context(), s, id, crossrun.Reserved) {
			if errors.Is(err, runstore.ErrNotFound) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Errorf("run %q: record %q was left behind", id, rec.Key)
		}
	}
}

// third is another writer that changes either run while a step is in progress.
type third struct {
	name string
	// taken says that the step's guard does not hold at first.
	taken bool
	// purges says that what a step wrote may be gone.
	purges bool
	// settles says that the lead's write may be made without a fence.
	settles bool
	act     func(t *testing.T, g gated)
}

func thirds() []third {
	change := func(t *testing.T, g gated, fill func(b *runstore.Batch)) {
		b := runstore.NewBatch("registry", runstore.Unguarded("test"))
		fill(&b)
		if _, err := g.Commit(t.Context(), b); err != nil && !errors.Is(err, runstore.ErrNotFound) {
			t.Error(err)
		}
	}
	frees := func(t *testing.T, g gated) { change(t, g, func(b *runstore.Batch) { b.Delete("n") }) }
	settles := func(t *testing.T, g gated) {
		if _, err := crossrun.Settle(t.Context(), g, "run"); err != nil {
			t.Error(err)
		}
	}
	return []third{
		{name: "frees the name", act: frees},
		{name: "frees the name that was taken", taken: true, act: frees},
		{name: "takes the name and frees it", act: func(t *testing.T, g gated) {
			change(t, g, func(b *runstore.Batch) { b.Put("n", []byte("somebody")) })
			frees(t, g)
		}},
		{name: "sweeps", act: func(t *testing.T, g gated) {
			if _, err := crossrun.Sweep(t.Context(), g, "registry"); err != nil {
				t.Error(err)
			}
		}},
		{name: "settles the step", settles: true, act: settles},
		{name: "settles the step after the name was freed", taken: true, settles: true, act: func(t *testing.T, g gated) {
			frees(t, g)
			settles(t, g)
		}},
		{name: "purges the registry", purges: true, act: func(t *testing.T, g gated) {
			change(t, g, func(b *runstore.Batch) { b.Purge = true })
		}},
		{name: "purges the registry and makes it anew", purges: true, act: func(t *testing.T, g gated) {
			change(t, g, func(b *runstore.Batch) { b.Purge = true })
			_, err := turn(g, func() (runstore.Created, error) {
				return g.RunStore.CreateRun(t.Context(), runstore.RunSpec{ID: "registry"})
			})
			if err != nil {
				t.Error(err)
			}
		}},
	}
}

// exhaustive is the environment variable that lets TestInterleavings go through
// every order, some two million, instead of a sample of those that are many.
const exhaustive = "TAPESTORE_EXHAUSTIVE"

// TestInterleavings lets a driver make a step, a successor take over and a third
// party meddle with the runs, in every order of their operations on the store.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	for i, other := range thirds() {
		for _, forgets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/forgets=%t", other.name, forgets), func(t *testing.T) {
				t.Parallel()
				seen := map[string]int{}
				if i > 0 && os.Getenv(exhaustive) == "" {
					for seed := range uint64(1500) {
						random := rand.New(rand.NewPCG(seed, 0))
						seen[interleaving(t, random.IntN, other, forgets)]++
						if t.Failed() {
							t.Fatalf("in the interleaving of seed %d", seed)
						}
					}
					t.Logf("a sample: %v", seen)
					return
				}
				w, n := &walk{}, 0
				for more := true; more; more = w.next() {
					seen[interleaving(t, w.choose, other, forgets)]++
					if n++; t.Failed() {
						t.Fatalf("in interleaving %d: %v", n, w.path)
					}
				}
				t.Logf("all %d: %v", n, seen)
			})
		}
	}
}

func interleaving(t *testing.T, choose func(n int) int, other third, forgets bool) (what string) {
	ctx := t.Context()
	var base runstore.RunStore = memory.New(nil).Open()
	if forgets {
		base = forgetful{base}
	}
	create(t, base, "run", "registry")
	if other.taken {
		b := runstore.NewBatch("registry", runstore.AtVersion("n", 0))
		b.Put("n", []byte("somebody"))
		if _, err := base.Commit(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	lease := hold(t, base, "run")
	var result error
	var whole [2]int
	s := schedule{choose: choose}
	s.add("driver", base, func(g gated) {
		lead, other := claim(lease)
		_, result = crossrun.Commit(ctx, g, lead, other)
	})
	var next runstore.Granted
	var taken int // how many events the lead had when it was taken over
	s.add("successor", base, func(g gated) {
		var err error
		if next, err = g.AcquireLease(ctx, preempt("run", "successor")); err != nil {
			t.Errorf("successor: %v", err)
		}
		taken = claims(t, base, "run")
		if _, err := crossrun.Recover(ctx, g, next.Fence()); err != nil {
			t.Errorf("successor: %v", err)
		}
		whole = [2]int{claims(t, base, "run"), claims(t, base, "registry")}
	})
	s.add("third party", base, func(g gated) { other.act(t, g) })
	s.run()

	made := [2]int{claims(t, base, "run"), claims(t, base, "registry")}
	if made[0] != whole[0] || made[1] > whole[1] || made[1] < whole[1] && !other.purges {
		t.Errorf("the step is on the runs %d times, and was %d times when the successor had its lease", made, whole)
	}
	if made[0] > 1 || made[1] > made[0] || made[1] < made[0] && !other.purges {
		t.Errorf("the step was made %d times on the lead and %d times on the other run", made[0], made[1])
	}
	for event := range runstore.Journal(ctx, base, "run", runstore.Seq(taken+1)) {
		if event.Token != next.Token && !(other.settles && event.Token == 0) {
			t.Errorf("event %d of token %v came after token %v was granted", event.Seq, event.Token, next.Token)
		}
	}
	outcome := runstore.OutcomeOf(result)
	if outcome == runstore.Applied && made[0] != 1 || outcome == runstore.NotApplied && made[0] != 0 {
		t.Errorf("the driver was told %v (%v), and the step was made %d times", outcome, result, made[0])
	}
	expected := errors.Is(result, runstore.ErrFenced) || errors.Is(result, runstore.ErrConflict) || other.purges && errors.Is(result, runstore.ErrNotFound)
	if result != nil && !expected {
		t.Errorf("the driver was told %v, want that it was fenced or refused", result)
	}
	if _, err := crossrun.Sweep(ctx, base, "registry"); err != nil && !errors.Is(err, runstore.ErrNotFound) {
		t.Error(err)
	}
	clean(t, base, "run", "registry")
	return fmt.Sprintf("%v, made %d", outcome, made[0])
}

// claims counts the events of claims in a journal; 0 if the run was purged.
func claims(t testing.TB, s runstore.RunStore, id runstore.RunID) int {
	t.Helper()
	n := 0
	for _, err := range runstore.Journal(context.WithoutCancel(t.Context()), s, id, 1) {
		if errors.Is(err, runstore.ErrNotFound) {
			return 0
		}
		if err != nil {
			t.Error(err)
		}
		n++
	}
	return n
}
