package tape_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// Every status of an effect meets every resolution.
func TestObservationTransitions(t *testing.T) { // 37 to 39
	t.Parallel()
	const pending, confirmed, failed, unknown = tape.EffectPending, tape.EffectConfirmed, tape.EffectFailed, tape.EffectUnknown
	becomes := map[tape.Resolution]tape.EffectStatus{
		tape.ResolvedConfirmed: confirmed, tape.ResolvedFailed: failed, tape.ResolvedDuplicate: confirmed, tape.ResolvedStuck: unknown,
	}
	for _, from := range []tape.EffectStatus{pending, confirmed, failed, unknown} {
		for resolution := tape.ResolvedUnspecified; resolution <= tape.ResolvedStuck; resolution++ {
			for _, semantics := range []tape.EffectSemantics{tape.Idempotent, tape.NonIdempotent} {
				t.Run(fmt.Sprint(from, " ", resolution, " ", semantics), func(t *testing.T) {
					t.Parallel()
					tp, s, _ := newTape(t)
					r := begin(t, tp, "i")
					_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Mode: tape.Outbox, Semantics: semantics, Scope: "pay"})
					if err == nil && from == pending {
						claimDispatch(t, tp, r.ID, "A", 0)
					}
					if err == nil && from != pending {
						_, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: from, Response: "first"})
					}
					if err != nil {
						t.Fatal(err)
					}
					before := historyOf(t, s, r.ID)
					e, err := tp.RecordExternalObservation(t.Context(), tape.Observation{
						Run: r.ID, Key: "K", Resolution: resolution, ExternalRef: "ref", CompensateKind: "reverse",
					})
					if err != nil {
						t.Fatal(err)
					}
					duplicate := resolution == tape.ResolvedDuplicate
					kept := (from == confirmed || from == failed) && resolution != tape.ResolvedConfirmed && !duplicate
					want, named := becomes[resolution]
					switch {
					case kept, resolution == tape.ResolvedUnspecified:
						want = from
					case !named && semantics == tape.Idempotent:
						want = pending
					case !named:
						want = failed
					}
					if e.Status != want || (e.ExternalRef == "ref") == kept || e.DispatchClaimedBy != "" {
						t.Errorf("%+v, want status %d, observed: %t", e, want, !kept)
					}
					entries := 1
					if kept {
						entries = 0
					}
					if duplicate {
						entries = 2
					}
					if n := len(historyOf(t, s, r.ID).events) - len(before.events); n != entries {
						t.Errorf("%d entries, want %d", n, entries)
					}
					if got := toDispatch(t, tp, tape.DispatchQuery{}); (got == "K") != (want == pending) {
						t.Errorf("to dispatch: %q, the effect is %d", got, want)
					}
					duties, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: r.ID})
					if err != nil || (len(duties) == 1) != duplicate {
						t.Fatalf("obligations: %+v, %v", duties, err)
					}
					if duplicate && (duties[0].Kind != "reverse" || duties[0].EffectKey != "K" || duties[0].Seq != e.Seq+runstore.Seq(len(before.events))) {
						t.Errorf("obligation: %+v, want one of kind reverse for K, explained by the last entry", duties[0])
					}
				})
			}
		}
	}
}

// An effect at the limits of all its texts fits into an answer, whatever bytes they have.
func TestLargestEffectIsAnswered(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	worst := func(n int) string { return strings.Repeat("\x01", n) } // six bytes as JSON
	_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{
		Run: r.ID, CustomKey: "K", Mode: tape.Outbox, Tool: worst(10_000), Request: worst(tape.MaxRequest),
	})
	if err != nil {
		t.Fatal(err)
	}
	claim := tape.ClaimRequest{Claimer: worst(tape.MaxClaimer)}
	if _, acquired, _, err := tp.ClaimEffectDispatch(t.Context(), r.ID, "K", claim); err != nil || !acquired {
		t.Fatal(acquired, err)
	}
	if _, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: r.ID, Key: "K", Error: worst(tape.MaxDispatchError)}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RecordExternalObservation(t.Context(), tape.Observation{
		Run: r.ID, Key: "K", Resolution: tape.ResolvedStuck, ExternalRef: worst(tape.MaxExternalRef), Response: worst(tape.MaxOutcome),
	}); err != nil {
		t.Fatal(err)
	}
	list, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{})
	if err != nil || len(list) != 1 {
		t.Errorf("%d effects, %v, want the one", len(list), err)
	}
}
