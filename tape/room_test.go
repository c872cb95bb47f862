package tape_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// reserved collects what the last put of each record reserves, by commits and grants.
type reserved struct {
	runstore.RunStore
	last map[runstore.RecordKey][]runstore.RecordWrite
}

func (s *reserved) note(w runstore.Writes) {
	for _, w := range w.Records {
		s.last[w.Key] = w.Reserve
	}
}

func (s *reserved) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.note(b.Writes)
	return s.RunStore.Commit(ctx, b)
}

func (s *reserved) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	created, err := s.RunStore.CreateRun(ctx, spec)
	if created.New {
		s.note(spec.Writes)
	}
	return created, err
}

func (s *reserved) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	granted, err := s.RunStore.AcquireLease(ctx, req)
	if err == nil {
		s.note(req.Writes)
	}
	return granted, err
}

// An effect keeps room for its later forms, also when it was compacted, and for an obligation, until it
// is CONFIRMED. Then it stands in no queue any more.
func TestEffectsKeepRoom(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	store := &reserved{s, map[runstore.RecordKey][]runstore.RecordWrite{}}
	tp := tape.New(store, nil)
	r := begin(t, tp, "i")
	keeps := func(when string, records, places int) {
		t.Helper()
		later := store.last["effect/k"]
		if len(later) != records {
			t.Fatalf("%s: it keeps room for %d records, want %d", when, len(later), records)
		}
		if records == 0 {
			return
		}
		if later[0].Key != "effect/k" || len(later[0].Value) < tape.MaxRequest+tape.MaxOutcome || len(later[0].Index) != places {
			t.Errorf("%s: it keeps room for %q with %d bytes and %d places, want itself, its outcome and %d places",
				when, later[0].Key, len(later[0].Value), len(later[0].Index), places)
		}
		if len(later[1].Value) < tape.MaxCompensation+tape.MaxResult || len(later[1].Index) != 1 {
			t.Errorf("%s: it keeps room for an obligation with %d bytes and %d places, want its payload, its result and a place",
				when, len(later[1].Value), len(later[1].Index))
		}
	}
	beginEffect(t, tp, tape.BeginEffectRequest{Run: r.ID, CustomKey: "k", Request: "{}", Mode: tape.Outbox, Connector: "bank"})
	keeps("begun", 2, 3)
	if _, _, _, err := tp.ClaimEffectDispatch(t.Context(), r.ID, "k", tape.ClaimRequest{Claimer: "c"}); err != nil {
		t.Fatal(err)
	}
	keeps("claimed", 2, 3)
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: r.ID, Key: "k", Error: strings.Repeat("e", 100)}); err != nil {
		t.Fatal(err)
	}
	keeps("unknown", 2, 3)
	if _, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "k", Status: tape.EffectFailed}); err != nil {
		t.Fatal(err)
	}
	keeps("reconciled", 2, 3)
	observed := tape.Observation{Run: r.ID, Key: "k", Resolution: tape.ResolvedDuplicate, CompensateKind: "refund"}
	if _, err := tp.RecordExternalObservation(t.Context(), observed); err != nil {
		t.Fatal(err)
	}
	keeps("seen twice", 0, 0)

	r = begin(t, tp, "compacted")
	beginEffect(t, tp, tape.BeginEffectRequest{Run: r.ID, CustomKey: "k", Request: "{}"})
	keeps("begun inline", 2, 1)
	end(t, tp, r.ID, tape.RunFailed)
	delete(store.last, "effect/k")
	if c, err := tp.CompactRun(t.Context(), r.ID, runstore.Fence{}); err != nil || c.Effects != 1 {
		t.Fatalf("CompactRun = %+v, %v", c, err)
	}
	keeps("compacted", 2, 1)
}
