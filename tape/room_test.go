package tape_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// reserved collects what the last put of each record reserves.
type reserved struct {
	runstore.RunStore
	last map[runstore.RecordKey][]runstore.RecordWrite
}

func (s *reserved) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	for _, w := range b.Records {
		s.last[w.Key] = w.Reserve
	}
	return s.RunStore.Commit(ctx, b)
}

// An effect keeps room while its outcome is open, also when it was compacted, and no longer.
func TestOpenEffectsKeepRoom(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	store := &reserved{s, map[runstore.RecordKey][]runstore.RecordWrite{}}
	tp := tape.New(store, nil)
	r := begin(t, tp, "i")
	keeps := func(when string, want int) {
		t.Helper()
		later := store.last["effect/k"]
		if (len(later) == 1) != (want > 0) {
			t.Fatalf("%s: it keeps room for %d records", when, len(later))
		}
		if want > 0 && (later[0].Key != "effect/k" || len(later[0].Value) < tape.MaxRequest+tape.MaxOutcome || len(later[0].Index) != want) {
			t.Errorf("%s: it keeps room for %q with %d bytes and %d places, want itself, its outcome and %d places",
				when, later[0].Key, len(later[0].Value), len(later[0].Index), want)
		}
	}
	beginEffect(t, tp, tape.BeginEffectRequest{Run: r.ID, CustomKey: "k", Request: "{}", Mode: tape.Outbox, Connector: "bank"})
	keeps("begun", 3)
	if _, _, _, err := tp.ClaimEffectDispatch(t.Context(), r.ID, "k", tape.ClaimRequest{Claimer: "c"}); err != nil {
		t.Fatal(err)
	}
	keeps("claimed", 3)
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed}); err != nil {
		t.Fatal(err)
	}
	if c, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil || c.Effects != 1 {
		t.Fatalf("CompactRun = %+v, %v", c, err)
	}
	keeps("compacted", 3)
	if _, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: r.ID, Key: "k", Error: strings.Repeat("e", 100)}); err != nil {
		t.Fatal(err)
	}
	keeps("unknown", 3)
	if _, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "k", Status: tape.EffectFailed}); err != nil {
		t.Fatal(err)
	}
	keeps("reconciled", 0)
}
