package crossrun_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestRepeatsInAnyOrder lets several callers make one step under one id while others settle it and sweep its
// marks, with any of their operations lost or delayed. Afterwards the lead no longer remembers the step, the
// delayed operations are made, and a successor takes the run over: the step is on both runs once, or on
// neither if no call succeeded.
func TestRepeatsInAnyOrder(t *testing.T) {
	t.Parallel()
	stories := uint64(3000)
	if testing.Short() {
		stories = 500
	}
	seen := map[string]int{}
	for seed := range stories {
		repeats(t, seed, seen)
		if t.Failed() {
			t.Fatalf("in the story of seed %d", seed)
		}
	}
	t.Logf("steps: %v", seen)
	if seen["made, and a call succeeded"] == 0 || seen["made"] == 0 || seen["not made"] == 0 {
		t.Errorf("steps: %v, want some of each kind", seen)
	}
}

func repeats(t *testing.T, seed uint64, seen map[string]int) {
	ctx := t.Context()
	random := rand.New(rand.NewPCG(seed, 3))
	base := memory.New(nil).Open()
	create(t, base, "run", "registry")
	lease := hold(t, base, "run")
	store := &changing{RunStore: base}
	rate := 8 + random.IntN(40)
	s := schedule{choose: random.IntN, fault: func(*actor) fault {
		if random.IntN(rate) > 0 {
			return noFault
		}
		return []fault{diesBefore, diesAfter, losesRequest, losesReply, delaysRequest}[random.IntN(5)]
	}}
	succeeded := false
	for n := range 3 {
		s.add(fmt.Sprint("driver-", n), store, func(g gated) {
			lead, other := unguarded["nothing that the step guards is moved"](lease)
			lead.Append("claimed", nil)
			lead.ID = "step"
			for range 2 {
				_, err := crossrun.Commit(ctx, g, lead, other)
				succeeded = succeeded || err == nil
				if errors.Is(err, runstore.ErrConflict) {
					t.Errorf("a call ended with %v, and nothing that the step guards was moved", err)
				}
			}
		})
	}
	s.add("settler", store, func(g gated) {
		_, _ = crossrun.Settle(ctx, g, "run")
		_, _ = crossrun.Sweep(ctx, g, "registry")
	})
	s.run()

	store.RunStore = forgotten{base}
	for _, a := range s.actors {
		for _, do := range a.late {
			do()
		}
	}
	hold(t, store, "run")
	made := [2]int{claims(t, base, "run"), claims(t, base, "registry")}
	if made != [2]int{1, 1} && (succeeded || made != [2]int{}) {
		t.Errorf("the step was made %d times; a call succeeded: %t", made, succeeded)
	}
	switch {
	case succeeded:
		seen["made, and a call succeeded"]++
	case made[0] > 0:
		seen["made"]++
	default:
		seen["not made"]++
	}
	if _, err := crossrun.Sweep(ctx, base, "registry"); err != nil {
		t.Error(err)
	}
	clean(t, base, "run", "registry")
}
