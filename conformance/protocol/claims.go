package protocol

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func claimCases() []Case {
	return []Case{
		{Group: "T3", Name: "one-dispatcher", Run: oneDispatcher,
			Doc: "Of several processes that claim an effect's dispatch concurrently, one gets it, and all others see that process's name."},
		{Group: "T3", Name: "one-obligation-claimer", Run: oneClaimerOfObligation,
			Doc: "Of several processes that claim an obligation concurrently, one gets it, and all others see that process's name."},
		{Group: "T3", Name: "late-dispatcher-changes-nothing", Needs: []Need{NeedGenerations}, Run: lateDispatcher,
			Doc: "The report of a dispatcher whose effect was since claimed by another dispatcher changes nothing."},
		{Group: "T3", Name: "late-report-revives-nothing", Run: lateReport,
			Doc: "A report of a failed attempt, also one without a generation, leaves a CONFIRMED, FAILED or UNKNOWN effect as it is."},
		{Group: "T3", Name: "late-compensator-changes-nothing", Needs: []Need{NeedGenerations}, Run: lateCompensator,
			Doc: "The reports of a claimer whose obligation was since claimed by another claimer change nothing."},
		{Group: "T3", Name: "generations-grow", Needs: []Need{NeedGenerations}, Run: generationsGrow,
			Doc: "Each claim has a higher generation than all claims before it, also across reports and expired claims."},
	}
}

// claimer returns the name of contender i.
func claimer(i int) string { return fmt.Sprintf("claimer-%d", i) }

func oneDispatcher(t T, e *Env) {
	id, contenders := e.begin(t), e.contenders()
	processes := make([]*Process, contenders)
	for i := range processes {
		processes[i] = e.NewProcess(t)
	}
	for round := range e.Rounds(4) {
		key := fmt.Sprint(round)
		e.post(t, id, key, idempotent)
		answers := make([]*tapepb.ClaimEffectDispatchResponse, contenders)
		together(contenders, func(i int) {
			r, err := processes[i].Try.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: key, Claimer: claimer(i)})
			if err != nil {
				t.Errorf("ClaimEffectDispatch: %v", err)
			}
			answers[i] = r
		})
		winners, winner := 0, e.effect(t, id, key).GetDispatchClaimedBy()
		for i, a := range answers {
			if a.GetAcquired() {
				winners++
				expect(t, winner == claimer(i), "%s acquired the claim, and the holder is %s", claimer(i), winner)
			}
			expect(t, a.GetEffect().GetDispatchClaimedBy() == winner, "%s sees the holder %q, want %q", claimer(i), a.GetEffect().GetDispatchClaimedBy(), winner)
		}
		require(t, winners == 1, "%d dispatchers acquired one effect", winners)
	}
}

func oneClaimerOfObligation(t T, e *Env) {
	id, contenders := e.begin(t), e.contenders()
	for round := range e.Rounds(4) {
		e.contendForObligation(t, e.owe(t, id, fmt.Sprint(round), 0), contenders)
	}
}

// contendForObligation has n processes claim an obligation concurrently.
func (e *Env) contendForObligation(t T, o *tapepb.ObligationRecord, n int) {
	t.Helper()
	processes := make([]*Process, n)
	for i := range processes {
		processes[i] = e.NewProcess(t)
	}
	answers := make([]*tapepb.ClaimObligationResponse, n)
	together(n, func(i int) {
		r, err := processes[i].Try.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Claimer: claimer(i)})
		if err != nil {
			t.Errorf("ClaimObligation: %v", err)
		}
		answers[i] = r
	})
	winners, winner := 0, e.obligation(t, o.GetRunId(), o.GetSeq()).GetClaimedBy()
	for i, a := range answers {
		if a.GetAcquired() {
			winners++
			expect(t, winner == claimer(i), "%s acquired the claim, and the holder is %s", claimer(i), winner)
		}
		expect(t, a.GetObligation().GetClaimedBy() == winner, "%s sees the holder %q, want %q", claimer(i), a.GetObligation().GetClaimedBy(), winner)
	}
	require(t, winners == 1, "%d of %d claimers acquired the obligation", winners, n)
}

// superseded claims an effect for owner A, lets the claim expire, and claims it for owner B. It
// returns the generation of A's claim.
func (e *Env) superseded(t T, run, key string) int64 {
	t.Helper()
	stale := e.claim(t, run, key, "A", 1).GetGeneration()
	until(t, "the lapsed claim is granted to B", func() bool { return e.claim(t, run, key, "B", 600_000).GetAcquired() })
	return stale
}

func lateDispatcher(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	stale := e.superseded(t, id, "K")
	before := e.effect(t, id, "K")
	unchanged := func(what string, err error) {
		t.Helper()
		_ = err // a server may refuse the report, or return the unchanged effect
		got := e.effect(t, id, "K")
		expect(t, proto.Equal(got, before), "after %s under a stale claim the effect is %v, want %v", what, got, before)
	}
	for _, next := range []int64{0, before.GetNextDispatchAtMs() + 1} {
		_, err := e.Try.RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "K", NextDispatchAtMs: next, ClaimGeneration: stale})
		unchanged("RecordDispatchAttempt", err)
	}
	_, err := e.Try.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "K", Status: failed, ClaimGeneration: stale})
	unchanged("CompleteEffect", err)
	r, _ := e.Client.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{
		RunId: id, IdempotencyKey: "K", Status: confirmed, ResponseJson: "1", ClaimGeneration: before.GetDispatchClaimGeneration(),
	})
	expect(t, r.GetStatus() == confirmed, "the report of the holder = %v, want it CONFIRMED", r)
}

func lateReport(t T, e *Env) {
	id := e.begin(t)
	for key, outcome := range map[string]tapepb.EffectStatus{"confirmed": confirmed, "failed": failed, "unknown": unknown} {
		e.post(t, id, key, idempotent)
		e.claim(t, id, key, "A", 0)
		e.complete(t, id, key, outcome, "1")
		before := e.effect(t, id, key)
		for _, next := range []int64{before.GetNextDispatchAtMs() + 1, 0} {
			r := e.attempt(t, id, key, next)
			got := e.effect(t, id, key)
			expect(t, r.GetStatus() == outcome && got.GetStatus() == outcome && got.GetDispatchAttempts() == before.GetDispatchAttempts(),
				"after a late report the effect is %v, want it %v", got, outcome)
		}
	}
	expect(t, len(e.toDispatch(t, e.Name("bank"), 0)) == 0, "after late reports there is something to dispatch: %q", e.toDispatch(t, e.Name("bank"), 0))
}

func lateCompensator(t T, e *Env) {
	o := e.owe(t, e.begin(t), "K", 0)
	stale := e.claimObligation(t, o, "A", 1).GetGeneration()
	until(t, "the lapsed claim is granted to B", func() bool { return e.claimObligation(t, o, "B", 600_000).GetAcquired() })
	before := e.obligation(t, o.GetRunId(), o.GetSeq())
	unchanged := func(what string) {
		t.Helper()
		got := e.obligation(t, o.GetRunId(), o.GetSeq())
		expect(t, proto.Equal(got, before), "after %s under a stale claim the obligation is %v, want %v", what, got, before)
	}
	for _, next := range []int64{0, o.GetNextAttemptAtMs() + 1} {
		_, _ = e.Try.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{ // may be refused or ignored
			RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), NextAttemptAtMs: next, ClaimGeneration: stale,
		})
		unchanged("RecordObligationAttempt")
	}
	_, _ = e.Try.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Status: compensated, ClaimGeneration: stale,
	})
	unchanged("ResolveObligation")
	r, _ := e.Client.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Status: compensated, ClaimGeneration: before.GetClaimGeneration(),
	})
	expect(t, r.GetStatus() == compensated, "the report of the holder = %v, want it COMPENSATED", r)
}

func generationsGrow(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	o := e.owe(t, id, "K", 0)
	var dispatch, obligation int64
	for range 3 {
		c := e.claim(t, id, "K", "A", 0)
		expect(t, c.GetAcquired() && c.GetGeneration() > dispatch, "the claim after generation %d is %v", dispatch, c)
		dispatch = c.GetGeneration()
		lost := e.claim(t, id, "K", "B", 0)
		expect(t, lost.GetGeneration() == 0, "a claim that was not acquired has a generation: %v", lost)
		e.attempt(t, id, "K", 1)
		w := e.claimObligation(t, o, "A", 0)
		expect(t, w.GetAcquired() && w.GetGeneration() > obligation, "the claim after generation %d is %v", obligation, w)
		obligation = w.GetGeneration()
		e.attemptObligation(t, o, 1)
	}
	stale := e.superseded(t, id, "K")
	expect(t, stale > dispatch && e.effect(t, id, "K").GetDispatchClaimGeneration() > stale, "a lapse does not raise the generation: %d, then %v", stale, e.effect(t, id, "K"))
}
