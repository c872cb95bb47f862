package tape

import (
	"context"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// racing registers an obligation before the first commit that reaches the store.
type racing struct {
	runstore.RunStore
	before func()
}

func (s *racing) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	return s.RunStore.Commit(ctx, b)
}

// One commit settles an effect and registers an obligation. Each row is explained by an entry of
// its own.
func TestAnObligationIsRegisteredWithAnotherRow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// prior and raced register the same obligation, before the operation and before its commit.
		prior, raced bool
		want         string
		seq          runstore.Seq
	}{
		{name: "new", want: "[run effect effect obligation]", seq: 4},
		{name: "known", prior: true, want: "[run effect obligation effect]", seq: 3},
		{name: "raced", raced: true, want: "[run effect obligation effect]", seq: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &racing{RunStore: memory.New(nil).Open()}
			tp := New(s, nil)
			r, err := tp.BeginRun(t.Context(), BeginRunRequest{Key: RunKey{App: "a"}, Owner: "o"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tp.BeginEffect(t.Context(), BeginEffectRequest{Run: r.ID, CustomKey: "E"}); err != nil {
				t.Fatal(err)
			}
			compensation := Compensation{Run: r.ID, EffectKey: "E", Kind: "K", Payload: "p"}
			register := func() {
				if _, err := tp.RegisterCompensation(t.Context(), compensation); err != nil {
					t.Error(err)
				}
			}
			if c.prior {
				register()
			}
			if c.raced {
				s.before = register
			}
			fresh, err := compensation.obligation()
			if err != nil {
				t.Fatal(err)
			}
			e, err := tp.changeEffect(t.Context(), r.ID, "E", runstore.Fence{}, func(e storedEffect, _ bool) (storedEffect, *step, error) {
				e.Status = EffectConfirmed
				s := e.note(map[string]any{"status": "observed"})
				return e, s, tp.alsoRegister(t.Context(), s, fresh)
			})
			if err != nil || e.Status != EffectConfirmed || e.Seq != 2 {
				t.Errorf("the effect is %+v, %v, want CONFIRMED under seq 2", e, err)
			}
			entries, err := tp.ReadJournal(t.Context(), r.ID, 1, 10)
			var kinds []string
			for _, e := range entries {
				kinds = append(kinds, e.Kind)
			}
			if fmt.Sprint(kinds) != c.want || err != nil {
				t.Errorf("journal = %s, %v, want %s", kinds, err, c.want)
			}
			listed, err := tp.ListObligations(t.Context(), ObligationQuery{Run: r.ID})
			if err != nil || len(listed) != 1 || listed[0].Seq != c.seq || listed[0].NextAttempt.IsZero() {
				t.Fatalf("ListObligations = %+v, %v, want one of seq %d", listed, err, c.seq)
			}
			if found, err := tp.ClaimObligation(t.Context(), ObligationClaimRequest{Run: r.ID, Seq: c.seq}); err != nil || !found.Acquired {
				t.Errorf("ClaimObligation = %+v, %v, want it acquired", found, err)
			}
		})
	}
}
