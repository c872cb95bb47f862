package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// Every status of an effect, and every state of its claim, meets every resolution and a number without
// a name.
func TestObservationTransitions(t *testing.T) { // 37 to 39
	t.Parallel()
	const pending, confirmed, failed, unknown = tape.EffectPending, tape.EffectConfirmed, tape.EffectFailed, tape.EffectUnknown
	const unclaimed, live, lapsed = "unclaimed", "live", "lapsed"
	becomes := map[tape.Resolution]tape.EffectStatus{
		tape.ResolvedConfirmed: confirmed, tape.ResolvedFailed: failed, tape.ResolvedDuplicate: confirmed, tape.ResolvedStuck: unknown,
	}
	for _, from := range []tape.EffectStatus{pending, confirmed, failed, unknown} {
		for _, claim := range []string{unclaimed, live, lapsed} {
			for resolution := tape.ResolvedUnspecified; resolution <= tape.ResolvedStuck+1; resolution++ {
				for _, semantics := range []tape.EffectSemantics{tape.Idempotent, tape.NonIdempotent} {
					if from != pending && claim != unclaimed {
						continue
					}
					t.Run(fmt.Sprint(from, " ", claim, " ", resolution, " ", semantics), func(t *testing.T) {
						t.Parallel()
						tp, s, store := newTape(t)
						r := begin(t, tp, "i")
						_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Mode: tape.Outbox, Semantics: semantics, Scope: "pay"})
						if err == nil && claim != unclaimed {
							claimDispatch(t, tp, r.ID, "A", time.Minute)
						}
						if claim == lapsed {
							store.Advance(time.Minute)
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
						absent, stuck := resolution == tape.ResolvedAbsent, resolution == tape.ResolvedStuck
						kept := (from == confirmed || from == failed) && resolution != tape.ResolvedConfirmed && !duplicate
						kept = kept || claim == live && (absent || stuck && semantics == tape.Idempotent)
						want, named := becomes[resolution]
						switch {
						case kept, !named && !absent:
							want = from
						case !named && semantics == tape.Idempotent:
							want = pending
						case !named:
							want = failed
						}
						if e.Status != want || (e.ExternalRef == "ref") == kept {
							t.Errorf("%+v, want status %d, observed: %t", e, want, !kept)
						}
						claimed := claim != unclaimed && (kept || !named && !absent)
						if (e.DispatchClaimedBy == "A") != claimed || e.DispatchClaimExpires.IsZero() == claimed {
							t.Errorf("%+v, want it claimed: %t", e, claimed)
						}
						after := historyOf(t, s, r.ID)
						entries := 1
						if kept {
							entries = 0
							if !reflect.DeepEqual(after, before) {
								t.Errorf("the run has changed to %+v", e)
							}
						}
						if duplicate {
							entries = 2
						}
						if n := len(after.events) - len(before.events); n != entries {
							t.Errorf("%d entries, want %d", n, entries)
						}
						due := want == pending && !(claimed && claim == live)
						if got := toDispatch(t, tp, tape.DispatchQuery{}); (got == "K") != due {
							t.Errorf("to dispatch: %q, the effect is %d, want it due: %t", got, want, due)
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
}

// A claim that another dispatcher makes between the observer's read and its commit is not ended, and its
// outcome counts.
func TestObservationMeetsAClaim(t *testing.T) {
	t.Parallel()
	for _, resolution := range []tape.Resolution{tape.ResolvedAbsent, tape.ResolvedStuck} {
		inner, store, _ := newTape(t)
		run := outbox(t, inner)
		observer := tape.New(ahead(store, "commit", 1, func() { claimDispatch(t, inner, run, "A", time.Minute) }), nil)
		e, err := observer.RecordExternalObservation(t.Context(), tape.Observation{Run: run, Key: "K", Resolution: resolution})
		if err != nil || e.Status != tape.EffectPending || e.DispatchClaimedBy != "A" {
			t.Errorf("resolution %d: %+v, %v, want the effect PENDING with the claim of A", resolution, e, err)
		}
		e, err = inner.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectConfirmed, Claim: 1})
		if err != nil || e.Status != tape.EffectConfirmed {
			t.Errorf("A's outcome after resolution %d: %+v, %v, want it CONFIRMED", resolution, e, err)
		}
	}
}

// If the store clock cannot be read, what depends on it changes nothing and says so.
func TestClaimWithoutTheClock(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	run := outbox(t, tp)
	claimDispatch(t, tp, run, "A", time.Minute)
	before := historyOf(t, s, run)
	noClock := tape.New(hook(s, func(op string) error {
		if op == "now" {
			return errDown
		}
		return nil
	}, nil), nil)
	for name, call := range map[string]func() (tape.Effect, error){
		"RecordExternalObservation": func() (tape.Effect, error) {
			return noClock.RecordExternalObservation(t.Context(), tape.Observation{Run: run, Key: "K", Resolution: tape.ResolvedAbsent})
		},
		"ReconcileEffect": func() (tape.Effect, error) {
			return noClock.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectPending})
		},
	} {
		e, err := call()
		if changed := !reflect.DeepEqual(historyOf(t, s, run), before); !errors.Is(err, runstore.ErrUnavailable) || changed {
			t.Errorf("%s: %+v, %v, changed: %t, want ErrUnavailable and no change", name, e, err, changed)
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
