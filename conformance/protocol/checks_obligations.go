package protocol

import (
	"slices"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func obligationCases() []Case {
	return []Case{
		{Group: "obligations", Check: 41, Name: "registered-once", Run: registeredOnce,
			Doc: "RegisterCompensation makes a PENDING obligation that is due, once for each effect key and kind."},
		{Group: "obligations", Check: 42, Name: "one-claimer", Run: oneObligationClaimer,
			Doc: "Of several claimers, one gets the obligation, and all others see that claimer's name."},
		{Group: "obligations", Check: 43, Name: "attempt-with-a-retry", Run: obligationRetry,
			Doc: "A failed attempt with a next time makes the obligation PENDING, and claimable from that time on."},
		{Group: "obligations", Check: 44, Name: "attempts-end-stuck", Run: attemptsEndStuck,
			Doc: "The last failed attempt, or a failed attempt without a next time, makes the obligation STUCK."},
		{Group: "obligations", Check: 45, Name: "lapsed-claim-is-granted-again", Run: lapsedObligationClaim,
			Doc: "Once a claim has expired another claimer gets the obligation."},
		{Group: "obligations", Check: 46, Name: "resolved", Run: resolved,
			Doc: "ResolveObligation works with a claim, without one, and after the obligation became STUCK. A run that is COMPENSATING is not listed for recovery, and ends FAILED."},
		{Group: "obligations", Check: 47, Name: "lists", Run: obligationLists,
			Doc: "ListObligations filters by status; ListUnresolvedObligations lists obligations that are due, whose claim has expired or, on request, that are STUCK."},
		{Group: "obligations", Check: 48, Name: "later-first", Run: laterFirst,
			Doc: "ListObligations lists the obligation that was registered last first."},
	}
}

func (p *Process) owe(t T, run, key string, attempts int32) *tapepb.ObligationRecord {
	t.Helper()
	o, _ := p.Client.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{
		RunId: run, EffectKey: key, Kind: "undo", PayloadJson: `{"p":1}`, CompensatorRef: "m:f", MaxAttempts: attempts,
	})
	return o
}

func (p *Process) claimObligation(t T, o *tapepb.ObligationRecord, claimer string, ttl int64) *tapepb.ClaimObligationResponse {
	t.Helper()
	r, _ := p.Client.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Claimer: claimer, LeaseTtlMs: ttl})
	return r
}

func (p *Process) attemptObligation(t T, o *tapepb.ObligationRecord, next int64) *tapepb.ObligationRecord {
	t.Helper()
	r, _ := p.Client.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Error: "refused", NextAttemptAtMs: next,
	})
	return r
}

func (p *Process) resolve(t T, o *tapepb.ObligationRecord, s tapepb.ObligationStatus) *tapepb.ObligationRecord {
	t.Helper()
	r, _ := p.Client.ResolveObligation(t.Context(), &tapepb.ResolveObligationRequest{
		RunId: o.GetRunId(), ObligationSeq: o.GetSeq(), Status: s, ResultJson: `{"r":1}`,
	})
	return r
}

func registeredOnce(t T, e *Env) {
	id := e.begin(t)
	o := e.owe(t, id, "K", 0)
	expect(t, o.GetStatus() == owed && o.GetMaxAttempts() == 5 && o.GetNextAttemptAtMs() > 0 && o.GetClaimedBy() == "" && o.GetClaimExpiresAtMs() == 0 &&
		o.GetPayloadJson() == `{"p":1}` && o.GetCompensatorRef() == "m:f", "RegisterCompensation = %v", o)
	again := e.owe(t, id, "K", 7)
	expect(t, again.GetSeq() == o.GetSeq() && again.GetMaxAttempts() == 5, "the second registration is %v, want %v", again, o)
}

func oneObligationClaimer(t T, e *Env) {
	o := e.owe(t, e.begin(t), "K", 0)
	got := e.claimObligation(t, o, "A", 0)
	expect(t, got.GetAcquired() && got.GetObligation().GetStatus() == committed && got.GetObligation().GetClaimedBy() == "A" &&
		got.GetObligation().GetClaimExpiresAtMs() > o.GetNextAttemptAtMs(), "the first claim is %v, want it acquired", got)
	lost := e.NewProcess(t).claimObligation(t, o, "B", 0)
	expect(t, !lost.GetAcquired() && lost.GetObligation().GetClaimedBy() == "A", "the second claim is %v, want the holder A", lost)

	many := e.owe(t, o.GetRunId(), "many", 0)
	e.contendForObligation(t, many, 8)
}

func obligationRetry(t T, e *Env) {
	o := e.owe(t, e.begin(t), "K", 0)
	e.claimObligation(t, o, "A", 0)
	next := o.GetNextAttemptAtMs() + 3_600_000
	r := e.attemptObligation(t, o, next)
	expect(t, r.GetStatus() == owed && r.GetAttempts() == 1 && r.GetLastError() == "refused" && r.GetClaimedBy() == "" && r.GetNextAttemptAtMs() == next,
		"RecordObligationAttempt = %v, want it PENDING until %d", r, next)
	expect(t, !e.claimObligation(t, o, "B", 0).GetAcquired(), "it is granted before its time")
	r = e.attemptObligation(t, o, o.GetNextAttemptAtMs()+1)
	expect(t, r.GetStatus() == owed && r.GetAttempts() == 2, "an attempt without a claim = %v, want 2 attempts", r)
	until(t, "an obligation is granted once its time has come", func() bool { return e.claimObligation(t, o, "B", 0).GetAcquired() })
}

func attemptsEndStuck(t T, e *Env) {
	id := e.begin(t)
	two := e.owe(t, id, "two", 2)
	for i, want := range []tapepb.ObligationStatus{owed, stuck} {
		r := e.attemptObligation(t, two, two.GetNextAttemptAtMs()+1)
		expect(t, r.GetStatus() == want && r.GetAttempts() == int32(i+1), "attempt %d = %v, want %v", i+1, r, want)
	}
	expect(t, e.obligation(t, id, two.GetSeq()).GetNextAttemptAtMs() == 0, "a STUCK obligation has a next attempt: %v", e.obligation(t, id, two.GetSeq()))
	r := e.attemptObligation(t, e.owe(t, id, "ten", 10), 0)
	expect(t, r.GetStatus() == stuck && r.GetAttempts() == 1, "an attempt without a next time = %v, want it STUCK", r)
}

func lapsedObligationClaim(t T, e *Env) {
	o := e.owe(t, e.begin(t), "K", 0)
	require(t, e.claimObligation(t, o, "A", 1).GetAcquired(), "the first claim is not acquired")
	until(t, "an obligation whose claim has expired is granted to another claimer", func() bool {
		r := e.claimObligation(t, o, "B", 60_000)
		return r.GetAcquired() && r.GetObligation().GetClaimedBy() == "B"
	})
}

func resolved(t T, e *Env) {
	id := e.begin(t)
	expires := e.run(t, id).GetLeaseExpiresAtMs()
	claimed, unclaimed, byHand := e.owe(t, id, "claimed", 0), e.owe(t, id, "unclaimed", 0), e.owe(t, id, "by hand", 0)
	e.claimObligation(t, claimed, "A", 0)
	require(t, e.attemptObligation(t, byHand, 0).GetStatus() == stuck, "an attempt without a next time does not make it STUCK")
	_, _ = e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: compensating})
	expect(t, e.run(t, id).GetStatus() == compensating && e.listed(t, id, expires+1000) == nil, "the unwinding run is %v, and listed for recovery", e.run(t, id))
	for _, o := range []*tapepb.ObligationRecord{claimed, unclaimed, byHand} {
		r := e.resolve(t, o, compensated)
		expect(t, r.GetStatus() == compensated && r.GetResultJson() == `{"r":1}` && r.GetClaimedBy() == "", "ResolveObligation = %v", r)
		// A final status stays final when later reports arrive.
		expect(t, e.attemptObligation(t, o, 0).GetStatus() == compensated, "a late attempt makes it %v", e.obligation(t, id, o.GetSeq()))
		expect(t, e.resolve(t, o, stuck).GetStatus() == compensated, "a late resolution makes it %v", e.obligation(t, id, o.GetSeq()))
		expect(t, !e.claimObligation(t, o, "B", 0).GetAcquired(), "a COMPENSATED obligation is granted")
	}
	open, _ := e.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id, OnlyUnresolved: true})
	expect(t, len(open.GetObligations()) == 0, "open are %v", open.GetObligations())
	expect(t, !e.unresolved(t, byHand, &tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true}), "a COMPENSATED obligation is listed among the STUCK")
	_, _ = e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: runFailed})
	expect(t, e.run(t, id).GetStatus() == runFailed, "the run is %v, want it FAILED", e.run(t, id))
}

// unresolved reports whether ListUnresolvedObligations lists an obligation.
func (p *Process) unresolved(t T, o *tapepb.ObligationRecord, req *tapepb.ListUnresolvedObligationsRequest) bool {
	t.Helper()
	req.Limit = everything
	r, _ := p.Client.ListUnresolvedObligations(t.Context(), req)
	return slices.ContainsFunc(r.GetObligations(), func(got *tapepb.ObligationRecord) bool {
		return got.GetRunId() == o.GetRunId() && got.GetSeq() == o.GetSeq()
	})
}

func obligationLists(t T, e *Env) {
	a := e.owe(t, e.begin(t), "K", 0)
	b := e.owe(t, e.Begin(t, e.Process, "b").GetRunId(), "K", 0)
	claim := e.claimObligation(t, b, "B", 60_000)
	for _, o := range []*tapepb.ObligationRecord{a, b} {
		for _, s := range []tapepb.ObligationStatus{owed, committed} {
			r, _ := e.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: o.GetRunId(), StatusFilter: s})
			want := (s == owed) == (o == a)
			expect(t, (len(r.GetObligations()) == 1) == want, "ListObligations of %v: %v", s, r.GetObligations())
		}
	}
	expect(t, e.unresolved(t, a, &tapepb.ListUnresolvedObligationsRequest{}), "the PENDING obligation is not listed")
	expect(t, !e.unresolved(t, b, &tapepb.ListUnresolvedObligationsRequest{}), "an obligation under a live claim is listed")
	later := claim.GetObligation().GetClaimExpiresAtMs() + 300_000
	for _, o := range []*tapepb.ObligationRecord{a, b} {
		expect(t, e.unresolved(t, o, &tapepb.ListUnresolvedObligationsRequest{NowMs: later}), "5 minutes after the claim %v is not listed", o)
	}
	expect(t, !e.unresolved(t, a, &tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true}), "a PENDING obligation is listed among the STUCK")
	e.attemptObligation(t, a, 0)
	expect(t, e.unresolved(t, a, &tapepb.ListUnresolvedObligationsRequest{IncludeStuck: true}), "the STUCK obligation is not listed on request")
	expect(t, !e.unresolved(t, a, &tapepb.ListUnresolvedObligationsRequest{}), "the STUCK obligation is listed without request")
}

func laterFirst(t T, e *Env) {
	id := e.begin(t)
	first, second := e.owe(t, id, "1", 0), e.owe(t, id, "2", 0)
	r, _ := e.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id})
	var seqs []int64
	for _, o := range r.GetObligations() {
		seqs = append(seqs, o.GetSeq())
	}
	expect(t, second.GetSeq() > first.GetSeq() && slices.Equal(seqs, []int64{second.GetSeq(), first.GetSeq()}),
		"ListObligations lists %d, want %d before %d", seqs, second.GetSeq(), first.GetSeq())
}
