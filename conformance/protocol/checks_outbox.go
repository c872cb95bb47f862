package protocol

import (
	"slices"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func outboxCases() []Case {
	return []Case{
		{Group: "outbox", Check: 32, Name: "listed-by-connector", Run: listedByConnector,
			Doc: "ListEffectsToDispatch lists a new OUTBOX effect under its connector and under none, and never an INLINE one."},
		{Group: "outbox", Check: 33, Name: "claim-excludes", Run: claimExcludes,
			Doc: "A claimed effect leaves the list and is not granted to another dispatcher, which sees the holder."},
		{Group: "outbox", Check: 34, Name: "lapsed-claim-is-granted-again", Run: lapsedClaim,
			Doc: "Once a claim has expired another dispatcher gets the effect."},
		{Group: "outbox", Check: 35, Name: "attempt-without-a-retry-is-unknown", Run: attemptUnknown,
			Doc: "A failed attempt without a next time makes the effect UNKNOWN: reconcilers see it, and dispatchers do not until it is reconciled to PENDING."},
		{Group: "outbox", Check: 36, Name: "attempt-with-a-retry-waits", Run: attemptRetry,
			Doc: "A failed attempt with a next time leaves the effect PENDING, and listed from that time on."},
		{Group: "outbox", Check: 37, Name: "absent-is-dispatched-again-or-failed", Run: absent37,
			Doc: "An UNKNOWN effect that was observed ABSENT fails, or is dispatched again if it is IDEMPOTENT."},
		{Group: "outbox", Check: 38, Name: "duplicate-registers-an-obligation", Run: duplicate,
			Doc: "An effect that was observed twice is CONFIRMED, and an obligation to reverse the second occurrence is registered."},
		{Group: "outbox", Check: 39, Name: "observed-confirmed", Run: observedConfirmed,
			Doc: "An observation confirms an effect and stores its reference. Later observations that do not find it change nothing."},
		{Group: "outbox", Check: 40, Name: "claim-of-nothing", Run: claimOfNothing,
			Doc: "A claim on an unknown key is not acquired, without an error."},
	}
}

// post begins an OUTBOX effect of the case's connector.
func (e *Env) post(t T, run, key string, semantics tapepb.EffectSemantics) *tapepb.BeginEffectResponse {
	t.Helper()
	return e.beginEffect(t, &tapepb.BeginEffectRequest{
		RunId: run, CustomKey: key, Connector: e.Name("bank"), DispatchMode: outbox, Semantics: semantics, Scope: "pay", RequestJson: "{}",
	})
}

// toDispatch returns the keys of the effects that are due for dispatch at the given time.
func (p *Process) toDispatch(t T, connector string, now int64) []string {
	t.Helper()
	r, _ := p.Client.ListEffectsToDispatch(t.Context(), &tapepb.ListEffectsToDispatchRequest{Connector: connector, NowMs: now, Limit: everything})
	var keys []string
	for _, e := range r.GetEffects() {
		keys = append(keys, e.GetIdempotencyKey())
	}
	return keys
}

func (p *Process) claim(t T, run, key, claimer string, ttl int64) *tapepb.ClaimEffectDispatchResponse {
	t.Helper()
	r, _ := p.Client.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: run, IdempotencyKey: key, Claimer: claimer, LeaseTtlMs: ttl})
	return r
}

func (p *Process) attempt(t T, run, key string, next int64) *tapepb.EffectRecord {
	t.Helper()
	r, _ := p.Client.RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: run, IdempotencyKey: key, Error: "timeout", NextDispatchAtMs: next})
	return r
}

func (p *Process) observe(t T, run, key, ref string, seen tapepb.EffectResolution) *tapepb.EffectRecord {
	t.Helper()
	r, _ := p.Client.RecordExternalObservation(t.Context(), &tapepb.RecordExternalObservationRequest{
		RunId: run, IdempotencyKey: key, Resolution: seen, ExternalRef: ref, ResponseJson: `"` + ref + `"`,
	})
	return r
}

func listedByConnector(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, e.Name("out"), idempotent)
	e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: e.Name("in"), Connector: e.Name("bank")})
	expect(t, slices.Equal(e.toDispatch(t, e.Name("bank"), 0), []string{e.Name("out")}), "the connector has %q", e.toDispatch(t, e.Name("bank"), 0))
	expect(t, len(e.toDispatch(t, e.Name("other"), 0)) == 0, "another connector has %q", e.toDispatch(t, e.Name("other"), 0))
	all := e.toDispatch(t, "", 0)
	expect(t, slices.Contains(all, e.Name("out")) && !slices.Contains(all, e.Name("in")), "without a connector the list is %q", all)
}

func claimExcludes(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	first := e.NewProcess(t).claim(t, id, "K", "A", 0)
	expect(t, first.GetAcquired() && first.GetEffect().GetDispatchClaimedBy() == "A" && first.GetEffect().GetDispatchClaimExpiresAtMs() > 0,
		"the first claim is %v, want it acquired", first)
	second := e.NewProcess(t).claim(t, id, "K", "B", 0)
	expect(t, !second.GetAcquired() && second.GetEffect().GetDispatchClaimedBy() == "A", "the second claim is %v, want the holder A", second)
	expect(t, len(e.toDispatch(t, e.Name("bank"), 0)) == 0, "the claimed effect is listed")
	expires := first.GetEffect().GetDispatchClaimExpiresAtMs()
	expect(t, len(e.toDispatch(t, e.Name("bank"), expires+1000)) == 1, "after the end of the claim the effect is not listed")
}

func lapsedClaim(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	require(t, e.claim(t, id, "K", "A", 1).GetAcquired(), "the first claim is not acquired")
	until(t, "a claim that has expired is granted to another dispatcher", func() bool {
		r := e.claim(t, id, "K", "B", 60_000)
		return r.GetAcquired() && r.GetEffect().GetDispatchClaimedBy() == "B"
	})
}

func attemptUnknown(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, e.Name("K"), idempotent)
	e.claim(t, id, e.Name("K"), "A", 0)
	r := e.attempt(t, id, e.Name("K"), 0)
	expect(t, r.GetStatus() == unknown && r.GetDispatchAttempts() == 1 && r.GetDispatchClaimedBy() == "" && r.GetLastDispatchError() == "timeout",
		"RecordDispatchAttempt = %v, want it UNKNOWN after 1 attempt", r)
	expect(t, len(e.toDispatch(t, e.Name("bank"), 0)) == 0, "an UNKNOWN effect is to be dispatched")
	open, _ := e.Client.ListPendingEffects(t.Context(), &tapepb.ListPendingEffectsRequest{IncludeUnknown: true, Limit: everything})
	found := slices.ContainsFunc(open.GetEffects(), func(r *tapepb.EffectRecord) bool { return r.GetIdempotencyKey() == e.Name("K") })
	expect(t, found, "ListPendingEffects does not list it")
	r, _ = e.Client.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: e.Name("K"), ResolvedStatus: pending})
	expect(t, r.GetStatus() == pending, "ReconcileEffect = %v, want it PENDING", r)
	expect(t, slices.Equal(e.toDispatch(t, e.Name("bank"), 0), []string{e.Name("K")}), "reconciled to PENDING, it is not to be dispatched")
	expect(t, e.claim(t, id, e.Name("K"), "B", 0).GetAcquired(), "reconciled to PENDING, it is not granted to a dispatcher")
}

func attemptRetry(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	now := e.effect(t, id, "K").GetNextDispatchAtMs()
	require(t, now > 0, "a new OUTBOX effect has no next_dispatch_at_ms")
	e.claim(t, id, "K", "A", 0)
	next := now + 3_600_000
	r := e.attempt(t, id, "K", next)
	expect(t, r.GetStatus() == pending && r.GetNextDispatchAtMs() == next && r.GetDispatchClaimedBy() == "", "RecordDispatchAttempt = %v, want it PENDING until %d", r, next)
	expect(t, len(e.toDispatch(t, e.Name("bank"), 0)) == 0, "it is listed before its time")
	expect(t, len(e.toDispatch(t, e.Name("bank"), next+1)) == 1, "it is not listed after its time")
	expect(t, !e.claim(t, id, "K", "B", 0).GetAcquired(), "it is granted before its time")
}

func absent37(t T, e *Env) {
	id := e.begin(t)
	for key, semantics := range map[string]tapepb.EffectSemantics{"once": nonIdempotent, "again": idempotent} {
		e.post(t, id, key, semantics)
		e.claim(t, id, key, "A", 0)
		require(t, e.attempt(t, id, key, 0).GetStatus() == unknown, "the effect %s is not UNKNOWN", key)
	}
	absent := tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT
	r := e.observe(t, id, "once", "", absent)
	expect(t, r.GetStatus() == failed, "a NON_IDEMPOTENT effect that is ABSENT is %v, want FAILED", r)
	r = e.observe(t, id, "again", "", absent)
	expect(t, r.GetStatus() == pending, "an IDEMPOTENT effect that is ABSENT is %v, want PENDING", r)
	expect(t, slices.Equal(e.toDispatch(t, e.Name("bank"), 0), []string{"again"}), "to be dispatched are %q", e.toDispatch(t, e.Name("bank"), 0))
}

func duplicate(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", nonIdempotent)
	req := &tapepb.RecordExternalObservationRequest{
		RunId: id, IdempotencyKey: "K", Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_DUPLICATE,
		ExternalRef: "ref-2", CompensateOnDuplicateKind: "reverse_wire",
	}
	for range 2 { // the repeat registers nothing
		r, _ := e.Client.RecordExternalObservation(t.Context(), req)
		expect(t, r.GetStatus() == confirmed && r.GetExternalRef() == "ref-2", "RecordExternalObservation = %v, want it CONFIRMED with its reference", r)
	}
	open, _ := e.Client.ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id, OnlyUnresolved: true})
	require(t, len(open.GetObligations()) == 1, "the open obligations are %v, want one", open.GetObligations())
	o := open.GetObligations()[0]
	p := object(t, o.GetPayloadJson())
	expect(t, o.GetKind() == "reverse_wire" && o.GetEffectKey() == "K" && o.GetMaxAttempts() == 5 &&
		p["external_ref"] == "ref-2" && p["idempotency_key"] == "K" && p["reason"] == "duplicate-observed", "the obligation is %v", o)
}

func observedConfirmed(t T, e *Env) {
	id := e.begin(t)
	e.post(t, id, "K", idempotent)
	e.claim(t, id, "K", "A", 0)
	r := e.observe(t, id, "K", "ref-1", tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED)
	expect(t, r.GetStatus() == confirmed && r.GetExternalRef() == "ref-1" && r.GetDispatchClaimedBy() == "", "RecordExternalObservation = %v, want it CONFIRMED by ref-1", r)
	for _, seen := range []tapepb.EffectResolution{
		tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT, tapepb.EffectResolution_EFFECT_RESOLUTION_FAILED, tapepb.EffectResolution_EFFECT_RESOLUTION_STUCK,
	} {
		e.observe(t, id, "K", "", seen)
		got := e.effect(t, id, "K")
		expect(t, got.GetStatus() == confirmed && got.GetExternalRef() == "ref-1", "after %v the CONFIRMED effect is %v", seen, got)
	}
	expect(t, len(e.toDispatch(t, e.Name("bank"), 0)) == 0, "a CONFIRMED effect is to be dispatched")
}

func claimOfNothing(t T, e *Env) {
	r := e.claim(t, e.begin(t), "none", "A", 0)
	expect(t, !r.GetAcquired() && r.GetEffect() == nil, "ClaimEffectDispatch = %v, want nothing", r)
}
