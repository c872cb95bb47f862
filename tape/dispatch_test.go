package tape_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// outbox begins a run with one outbox effect, "K" of connector "bank", and claims its dispatch.
func outbox(t *testing.T, tp *tape.Tape) (run runstore.RunID) {
	t.Helper()
	r := begin(t, tp, "i")
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Mode: tape.Outbox, Connector: "bank"}); err != nil {
		t.Fatal(err)
	}
	return r.ID
}

func claimDispatch(t *testing.T, tp *tape.Tape, run runstore.RunID, claimer string, ttl time.Duration) (tape.Effect, bool) {
	t.Helper()
	e, acquired, found, err := tp.ClaimEffectDispatch(t.Context(), run, "K", tape.ClaimRequest{Claimer: claimer, TTL: ttl})
	if err != nil || !found {
		t.Fatalf("claim by %s: found %t, %v", claimer, found, err)
	}
	return e, acquired
}

func toDispatch(t *testing.T, tp *tape.Tape, q tape.DispatchQuery) string {
	t.Helper()
	list, err := tp.ListEffectsToDispatch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, e := range list {
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

// A dispatcher whose claim has lapsed reports late. Its generation is not the last, so the report
// neither ends the claim of the next dispatcher nor makes the effect due again.
func TestLateDispatchReportChangesNothing(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	run := outbox(t, tp)
	first, acquired := claimDispatch(t, tp, run, "A", time.Hour)
	if !acquired || first.DispatchClaimedBy != "A" || first.Claims != 1 {
		t.Fatalf("A's claim: %+v, %t", first, acquired)
	}
	if loser, acquired := claimDispatch(t, tp, run, "B", time.Minute); acquired || loser.DispatchClaimedBy != "A" {
		t.Errorf("B's claim while A's is live: %t, claimed by %s; want A", acquired, loser.DispatchClaimedBy)
	}
	store.Advance(time.Hour)
	second, acquired := claimDispatch(t, tp, run, "B", time.Minute)
	if !acquired || second.DispatchClaimedBy != "B" || second.Claims != 2 {
		t.Fatalf("B's claim after A's: %+v, %t", second, acquired)
	}
	before := historyOf(t, s, run)
	for _, next := range []time.Time{{}, second.Time} {
		late, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: first.Claims, Error: "late", Next: next})
		if err != nil || late != second {
			t.Errorf("A's late report: %+v, %v, want %+v", late, err, second)
		}
	}
	if after := historyOf(t, s, run); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("A's late report changed %+v to %+v", before, after)
	}
	if got := toDispatch(t, tp, tape.DispatchQuery{}); got != "" {
		t.Errorf("to dispatch: %s, want nothing while B's claim is live", got)
	}
	done, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: second.Claims, Error: "refused"})
	if err != nil || done.Status != tape.EffectUnknown || done.DispatchClaimedBy != "" || done.DispatchAttempts != 1 {
		t.Errorf("B's report: %+v, %v, want UNKNOWN after one attempt", done, err)
	}
}

// A report ends its claim, so its repeat counts no attempt. An observation of ABSENT ends a claim that has
// lapsed, and no live one.
func TestDispatchReportCountsOnce(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	run := outbox(t, tp)
	e, _ := claimDispatch(t, tp, run, "A", time.Minute)
	for range 3 {
		got, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: 1, Error: "x", Next: e.Time})
		if err != nil || got.DispatchAttempts != 1 || got.Status != tape.EffectPending {
			t.Errorf("the report: %+v, %v, want one attempt", got, err)
		}
	}
	claimDispatch(t, tp, run, "B", time.Minute)
	absent := tape.Observation{Run: run, Key: "K", Resolution: tape.ResolvedAbsent}
	if _, err := tp.RecordExternalObservation(t.Context(), absent); err != nil {
		t.Fatal(err)
	}
	got, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: 2, Error: "x", Next: e.Time})
	if err != nil || got.Status != tape.EffectPending || got.DispatchAttempts != 2 {
		t.Errorf("a report after an observation during its claim: %+v, %v, want two attempts", got, err)
	}
	claimDispatch(t, tp, run, "C", time.Minute)
	store.Advance(time.Minute)
	if _, err := tp.RecordExternalObservation(t.Context(), absent); err != nil {
		t.Fatal(err)
	}
	got, err = tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: 3, Error: "late"})
	if err != nil || got.Status != tape.EffectPending || got.DispatchAttempts != 2 {
		t.Errorf("a report after an observation behind its claim: %+v, %v, want it PENDING", got, err)
	}
}

// A dispatcher whose claim has lapsed decides nothing: the outcome is that of the last claim.
func TestLateClaimCompletesNothing(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	run := outbox(t, tp)
	claimDispatch(t, tp, run, "A", time.Second)
	store.Advance(time.Second)
	claimDispatch(t, tp, run, "B", time.Minute)
	e, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectFailed, Claim: 1})
	if err != nil || e.Status != tape.EffectPending {
		t.Errorf("A's outcome: %+v, %v, want the effect as it is", e, err)
	}
	e, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectConfirmed, Claim: 2})
	if err != nil || e.Status != tape.EffectConfirmed {
		t.Errorf("B's outcome: %+v, %v, want it CONFIRMED", e, err)
	}
}

// An outcome ends the claim of its effect, and keeps its generation: a dispatcher whose claim lost its
// reply does not find the effect claimed by itself, and a late report is judged as before.
func TestOutcomeEndsTheClaim(t *testing.T) {
	t.Parallel()
	for _, status := range []tape.EffectStatus{tape.EffectConfirmed, tape.EffectFailed, tape.EffectUnknown} {
		for name, settle := range map[string]func(tp *tape.Tape, req tape.OutcomeRequest) (tape.Effect, error){
			"CompleteEffect": func(tp *tape.Tape, req tape.OutcomeRequest) (tape.Effect, error) {
				return tp.CompleteEffect(t.Context(), req)
			},
			"ReconcileEffect": func(tp *tape.Tape, req tape.OutcomeRequest) (tape.Effect, error) {
				return tp.ReconcileEffect(t.Context(), req)
			},
		} {
			tp, _, _ := newTape(t)
			run := outbox(t, tp)
			claimDispatch(t, tp, run, "A", time.Minute)
			e, err := settle(tp, tape.OutcomeRequest{Run: run, Key: "K", Status: status})
			if err != nil || e.Status != status || e.DispatchClaimedBy != "" || !e.DispatchClaimExpires.IsZero() || e.Claims != 1 {
				t.Errorf("%s to %d: %+v, %v, want it unclaimed, and generation 1", name, status, e, err)
			}
			if again, acquired := claimDispatch(t, tp, run, "A", time.Minute); acquired || again != e {
				t.Errorf("the repeat of the claim after %s to %d: %+v, %t, want it refused", name, status, again, acquired)
			}
			late, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: 1, Error: "late"})
			if err != nil || late != e {
				t.Errorf("a report after %s to %d: %+v, %v, want %+v", name, status, late, err, e)
			}
		}
	}
}

// ReconcileEffect to PENDING keeps the claim of a dispatcher that may be at work, and ends one that has
// lapsed: the dispatchers then do not take the effect for one that may have been dispatched.
func TestReconciledToPendingWithAClaim(t *testing.T) {
	t.Parallel()
	for _, lapsed := range []bool{false, true} {
		tp, _, store := newTape(t)
		run := outbox(t, tp)
		claimDispatch(t, tp, run, "A", time.Minute)
		if lapsed {
			store.Advance(time.Minute)
		}
		e, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectPending})
		if err != nil || e.Status != tape.EffectPending || e.Claims != 1 || (e.DispatchClaimedBy == "") != lapsed || e.DispatchClaimExpires.IsZero() != lapsed {
			t.Errorf("%+v, %v, want it PENDING, unclaimed: %t", e, err, lapsed)
		}
		if got := toDispatch(t, tp, tape.DispatchQuery{}); (got == "K") != lapsed {
			t.Errorf("to dispatch: %q, lapsed: %t", got, lapsed)
		}
		if e, acquired := claimDispatch(t, tp, run, "B", time.Minute); acquired != lapsed {
			t.Errorf("B's claim: %+v, %t, want it acquired: %t", e, acquired, lapsed)
		}
	}
}

// A failed attempt without a next time makes an effect UNKNOWN, and it is due no more. A reconciler
// that makes it PENDING again makes it due at once.
func TestEffectReconciledToPendingIsDue(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	run := outbox(t, tp)
	claimDispatch(t, tp, run, "A", time.Minute)
	e, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: 1, Error: "timeout"})
	if err != nil || e.Status != tape.EffectUnknown || !e.NextDispatch.IsZero() {
		t.Fatalf("the report: %+v, %v, want it UNKNOWN and never due", e, err)
	}
	store.Advance(time.Second)
	e, err = tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: tape.EffectPending})
	if err != nil || e.Status != tape.EffectPending || e.NextDispatch != e.Time {
		t.Errorf("ReconcileEffect: %+v, %v, want it PENDING, due since %v", e, err, e.Time)
	}
	for _, connector := range []string{"", "bank"} {
		if got := toDispatch(t, tp, tape.DispatchQuery{Connector: connector}); got != "K" {
			t.Errorf("connector %q: to dispatch %q, want K", connector, got)
		}
	}
	if e, acquired := claimDispatch(t, tp, run, "B", time.Minute); !acquired || e.DispatchClaimedBy != "B" || e.Claims != 2 {
		t.Errorf("B's claim: %+v, %t, want generation 2", e, acquired)
	}

	// An INLINE effect is never due.
	r := begin(t, tp, "inline")
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "inline", Connector: "bank"}); err != nil {
		t.Fatal(err)
	}
	e, err = tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "inline", Status: tape.EffectPending})
	if err != nil || !e.NextDispatch.IsZero() || toDispatch(t, tp, tape.DispatchQuery{}) != "" {
		t.Errorf("ReconcileEffect of an INLINE effect: %+v, %v, want it never due", e, err)
	}
}

// Every state of an outbox effect, with a claim or without, meets every operation of a dispatcher.
func TestDispatchTransitions(t *testing.T) {
	t.Parallel()
	const none, live, lapsed, appointed = "", "claimed", "claim lapsed", "appointed"
	later := time.Hour
	for _, status := range []tape.EffectStatus{tape.EffectPending, tape.EffectConfirmed, tape.EffectFailed, tape.EffectUnknown} {
		for _, state := range []string{none, live, lapsed, appointed} {
			if state == appointed && status != tape.EffectPending {
				continue
			}
			for _, report := range []string{"none", "last", "stale"} {
				t.Run(fmt.Sprint(status, " ", state, " ", report), func(t *testing.T) {
					t.Parallel()
					tp, s, store := newTape(t)
					run := outbox(t, tp)
					if state == live || state == lapsed {
						claimDispatch(t, tp, run, "stale", time.Second)
						store.Advance(time.Second)
						claimDispatch(t, tp, run, "last", time.Minute)
					}
					now, err := s.Now(t.Context())
					if err == nil && state == appointed {
						_, err = tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Next: now.Add(later)})
					}
					if err == nil && status != tape.EffectPending {
						_, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "K", Status: status})
					}
					if err != nil {
						t.Fatal(err)
					}
					if state == lapsed {
						store.Advance(time.Minute)
					}
					open := status == tape.EffectPending
					claimable := open && (state == none || state == lapsed)
					if got := toDispatch(t, tp, tape.DispatchQuery{Connector: "bank"}); (got == "K") != claimable {
						t.Errorf("to dispatch: %q, claimable %t", got, claimable)
					}
					before := historyOf(t, s, run)
					generation := map[string]int64{"none": 0, "last": 2, "stale": 1}[report]
					hasClaims := state == live || state == lapsed
					if !hasClaims && report != "none" {
						generation = 7 // of no claim that there was
					}
					e, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "K", Claim: generation, Error: "x"})
					if err != nil {
						t.Fatal(err)
					}
					applies := open && (report == "none" || report == "last" && hasClaims)
					if applies != (e.Status == tape.EffectUnknown && e.LastDispatchError == "x") {
						t.Errorf("a report: %+v, want it applied: %t", e, applies)
					}
					if after := historyOf(t, s, run); (len(after.events) == len(before.events)+1) != applies {
						t.Errorf("a report made %d entries of %d, applied: %t", len(after.events), len(before.events), applies)
					}
					if applies {
						return
					}
					if _, acquired := claimDispatch(t, tp, run, "C", 0); acquired != claimable {
						t.Errorf("a claim: acquired %t, want %t", acquired, claimable)
					}
				})
			}
		}
	}
}

func TestOneOfManyClaimersWins(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	run := outbox(t, tp)
	const claimers = 32
	winners := make([]string, claimers)
	var all sync.WaitGroup
	won := make(chan string, claimers)
	for i := range claimers {
		all.Go(func() {
			name := fmt.Sprint("claimer ", i)
			e, acquired, _, err := tp.ClaimEffectDispatch(t.Context(), run, "K", tape.ClaimRequest{Claimer: name})
			if err != nil {
				t.Error(err)
			}
			if winners[i] = e.DispatchClaimedBy; acquired {
				won <- name
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Fatalf("%d claimers won, want 1", len(won))
	}
	winner := <-won
	for i, seen := range winners {
		if seen != winner {
			t.Errorf("claimer %d sees %q, want the winner, %q", i, seen, winner)
		}
	}
}

func TestEffectsToDispatch(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	long := strings.Repeat("c", 300) // longer than the name of an index
	for _, e := range []tape.BeginEffectRequest{
		{CustomKey: "inline", Connector: "bank"},
		{CustomKey: "first", Mode: tape.Outbox, Connector: "bank"},
		{CustomKey: "second", Mode: tape.Outbox, Connector: long},
		{CustomKey: "third", Mode: tape.Outbox},
	} {
		e.Run = r.ID
		store.Advance(time.Millisecond)
		if _, err := tp.BeginEffect(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	now, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: r.ID, Key: "first", Error: "x", Next: now.Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    tape.DispatchQuery
		want string
	}{
		{tape.DispatchQuery{}, "second third"},
		{tape.DispatchQuery{Limit: 1}, "second"},
		{tape.DispatchQuery{Connector: "bank"}, ""},
		{tape.DispatchQuery{Connector: "bank", Now: now.Add(time.Minute)}, "first"},
		{tape.DispatchQuery{Connector: long}, "second"},
		{tape.DispatchQuery{Connector: "other"}, ""},
		{tape.DispatchQuery{Now: now.Add(time.Hour)}, "second third first"},
		{tape.DispatchQuery{Now: time.UnixMilli(1)}, ""},
	} {
		if got := toDispatch(t, tp, c.q); got != c.want {
			t.Errorf("%.60v: %q, want %q", c.q, got, c.want)
		}
	}
}

// The queue has an effect with a lapsed claim at the end of that claim. The list is in the order of the
// due times.
func TestEffectsWithLapsedClaimsAreInOrder(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	r := begin(t, tp, "i")
	for _, key := range []string{"lapsed", "fresh", "lapsed too", "fresh too"} {
		store.Advance(time.Second)
		if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: key, Mode: tape.Outbox, Connector: "bank"}); err != nil {
			t.Fatal(err)
		}
	}
	for key, ttl := range map[string]time.Duration{"lapsed": time.Minute, "lapsed too": 2 * time.Minute} {
		if _, acquired, _, err := tp.ClaimEffectDispatch(t.Context(), r.ID, key, tape.ClaimRequest{Claimer: "A", TTL: ttl}); err != nil || !acquired {
			t.Fatalf("claim of %s: %t, %v", key, acquired, err)
		}
	}
	store.Advance(time.Hour)
	for _, connector := range []string{"", "bank"} {
		if got, want := toDispatch(t, tp, tape.DispatchQuery{Connector: connector}), "lapsed fresh lapsed too fresh too"; got != want {
			t.Errorf("connector %q: %q, want %q", connector, got, want)
		}
	}
}

func TestDispatchInput(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	run := outbox(t, tp)
	before := historyOf(t, s, run)
	report := func(req tape.DispatchReport) error {
		req.Run, req.Key = run, "K"
		_, err := tp.RecordDispatchAttempt(t.Context(), req)
		return err
	}
	claim := func(req tape.ClaimRequest) error {
		_, _, _, err := tp.ClaimEffectDispatch(t.Context(), run, "K", req)
		return err
	}
	for field, err := range map[string]error{
		"claimer":             claim(tape.ClaimRequest{Claimer: strings.Repeat("x", tape.MaxClaimer+1)}),
		"lease_ttl_ms":        claim(tape.ClaimRequest{TTL: 25 * time.Hour}),
		"error":               report(tape.DispatchReport{Error: "\xff"}),
		"next_dispatch_at_ms": report(tape.DispatchReport{Next: runstore.EndOfTime.Add(time.Hour)}),
	} {
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Field != field {
			t.Errorf("%v, want an error that names %s", err, field)
		}
	}
	if after := historyOf(t, s, run); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused input changed %+v to %+v", before, after)
	}
	if err := report(tape.DispatchReport{Error: strings.Repeat("x", 1<<20)}); err != nil {
		t.Errorf("a long error: %v, want it cut", err)
	}
	if e, _, err := tp.GetEffect(t.Context(), run, "K"); err != nil || len(e.LastDispatchError) != tape.MaxDispatchError {
		t.Errorf("%d bytes of the error, %v, want %d", len(e.LastDispatchError), err, tape.MaxDispatchError)
	}
	if err := (func() error {
		_, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{Run: run, Key: "none"})
		return err
	})(); !errors.Is(err, tape.ErrNoSuchEffect) {
		t.Errorf("a report on an unknown effect: %v", err)
	}
	if _, acquired, found, err := tp.ClaimEffectDispatch(t.Context(), run, "none", tape.ClaimRequest{}); acquired || found || err != nil {
		t.Errorf("a claim of an unknown effect: %t, %t, %v", acquired, found, err)
	}
}
