package protocol

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func effectCases() []Case {
	return []Case{
		{Group: "effects", Check: 18, Name: "derived-key", Run: derivedKey(0, "execute_sweep", "decision-0"),
			Doc: "The key of an effect is derived from its run, decision, tool and call index."},
		{Group: "effects", Check: 19, Name: "derived-key-without-a-decision", Run: derivedKey(-1, "post_gl", "no-decision"),
			Doc: "The key of an effect without a decision says so."},
		{Group: "effects", Check: 20, Name: "begin-again-is-the-same-effect", Run: beginEffectAgain,
			Doc: "BeginEffect with an existing key of the run returns the effect unchanged."},
		{Group: "effects", Check: 21, Name: "outcome-is-replayed", Run: outcomeIsReplayed,
			Doc: "GetEffect and BeginEffect return the outcome that CompleteEffect recorded."},
		{Group: "effects", Check: 22, Name: "first-outcome-stays", Run: firstOutcomeStays,
			Doc: "A second completion returns the first outcome, and journals nothing."},
		{Group: "effects", Check: 23, Name: "custom-key", Run: customKey,
			Doc: "A custom key is the key, character by character."},
		{Group: "effects", Check: 24, Name: "complete-before-begin", Run: completeBeforeBegin,
			Doc: "CompleteEffect of an effect that was not begun is FAILED_PRECONDITION."},
		{Group: "effects", Check: 25, Name: "reconcile", Run: reconcile,
			Doc: "ReconcileEffect of an unknown key is NOT_FOUND; it settles an UNKNOWN effect, once."},
		{Group: "effects", Check: 26, Name: "non-idempotent-inline-is-refused", Run: nonIdempotentInline,
			Doc: "A NON_IDEMPOTENT effect is refused unless a dispatcher calls, and leaves no row."},
		{Group: "effects", Check: 27, Name: "non-idempotent-needs-a-scope", Run: nonIdempotentScope,
			Doc: "A NON_IDEMPOTENT effect without a scope is PERMISSION_DENIED."},
		{Group: "effects", Check: 28, Name: "scope-not-granted", Run: scopeNotGranted,
			Doc: "An effect under a scope that the run lacks is PERMISSION_DENIED, leaves no row, and is journaled as a violation."},
		{Group: "effects", Check: 29, Name: "scope-granted", Run: scopeGranted,
			Doc: "An effect under a granted scope begins; an idempotent one needs no scope."},
		{Group: "effects", Check: 30, Name: "business-key-needs-a-connector", Run: businessKeyNeedsConnector,
			Doc: "A business key without a connector is refused."},
		{Group: "effects", Check: 31, Name: "business-key-over-runs", Needs: []Need{NeedBusinessKeys}, Run: businessKeyOverRuns,
			Doc: "A second run that names a connector's business key gets the first run's effect in reply; under another connector the key is another effect."},
	}
}

func derivedKey(decision int64, tool, part string) func(T, *Env) {
	return func(t T, e *Env) {
		id := e.begin(t)
		for call := range int32(2) {
			r := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, DecisionIndex: decision, ToolName: tool, CallIndex: call})
			want := fmt.Sprintf("%s/%s/%s/%d", id, part, tool, call)
			expect(t, r.GetStatus() == pending && r.GetIdempotencyKey() == want, "BeginEffect = %v, want it PENDING with key %s", r, want)
		}
	}
}

func beginEffectAgain(t T, e *Env) {
	id := e.begin(t)
	req := &tapepb.BeginEffectRequest{RunId: id, ToolName: "execute_sweep", RequestJson: `{"n":1}`}
	first := e.beginEffect(t, req)
	cursor := e.run(t, id).GetSeqCursor()
	req.RequestJson = `{"n":2}`
	again := e.beginEffect(t, req)
	expect(t, again.GetIdempotencyKey() == first.GetIdempotencyKey() && again.GetSeq() == first.GetSeq() && again.GetStatus() == pending,
		"BeginEffect = %v, want %v", again, first)
	stored := e.effect(t, id, first.GetIdempotencyKey())
	expect(t, stored.GetRequestJson() == `{"n":1}`, "the request is %s, want the first one", stored.GetRequestJson())
	expect(t, e.run(t, id).GetSeqCursor() == cursor, "the second call has journaled")
}

func outcomeIsReplayed(t T, e *Env) {
	id := e.begin(t)
	req := &tapepb.BeginEffectRequest{RunId: id, ToolName: "execute_sweep"}
	key := e.beginEffect(t, req).GetIdempotencyKey()
	e.complete(t, id, key, confirmed, `{"ok":1}`)
	got := e.effect(t, id, key)
	expect(t, got.GetStatus() == confirmed && got.GetResponseJson() == `{"ok":1}`, "GetEffect = %v, want it CONFIRMED with its response", got)
	again := e.beginEffect(t, req)
	expect(t, again.GetStatus() == confirmed && again.GetResponseJson() == `{"ok":1}`, "BeginEffect = %v, want it CONFIRMED with its response", again)
}

func firstOutcomeStays(t T, e *Env) {
	id := e.begin(t)
	key := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, ToolName: "execute_sweep"}).GetIdempotencyKey()
	e.complete(t, id, key, confirmed, "1")
	cursor := e.run(t, id).GetSeqCursor()
	second := e.complete(t, id, key, failed, "2")
	for _, got := range []*tapepb.EffectRecord{second, e.effect(t, id, key)} {
		expect(t, got.GetStatus() == confirmed && got.GetResponseJson() == "1", "the effect is %v, want the first outcome", got)
	}
	expect(t, e.run(t, id).GetSeqCursor() == cursor, "the second completion has journaled")
}

func customKey(t T, e *Env) {
	id, key := e.begin(t), " K/ö#%00 "
	r := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, ToolName: "t", CustomKey: key})
	expect(t, r.GetIdempotencyKey() == key, "the key is %q, want %q", r.GetIdempotencyKey(), key)
	expect(t, e.effect(t, id, key).GetIdempotencyKey() == key, "GetEffect = %v", e.effect(t, id, key))
}

func completeBeforeBegin(t T, e *Env) {
	id := e.begin(t)
	_, err := e.Try.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "none", Status: confirmed})
	expectStatus(t, "CompleteEffect", err, codes.FailedPrecondition, "complete_effect before begin_effect")
	e.expectNoEffect(t, id, "none")
}

func (p *Process) expectNoEffect(t T, run, key string) {
	t.Helper()
	r, _ := p.Client.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: run, IdempotencyKey: key})
	expect(t, !r.GetFound() && r.GetEffect() == nil, "GetEffect = %v, want nothing", r)
}

func reconcile(t T, e *Env) {
	id := e.begin(t)
	req := &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "K", ResolvedStatus: confirmed, ResponseJson: "1"}
	_, err := e.Try.ReconcileEffect(t.Context(), req)
	expectStatus(t, "ReconcileEffect of an unknown key", err, codes.NotFound, "no such effect")
	e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K"})
	e.complete(t, id, "K", unknown, "")
	for _, resolved := range []tapepb.EffectStatus{confirmed, failed} {
		req.ResolvedStatus = resolved
		r, _ := e.Client.ReconcileEffect(t.Context(), req)
		expect(t, r.GetStatus() == confirmed && r.GetResponseJson() == "1", "ReconcileEffect(%v) = %v, want it CONFIRMED", resolved, r)
	}
}

func nonIdempotentInline(t T, e *Env) {
	id := e.begin(t)
	_, err := e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", Semantics: nonIdempotent, DispatchMode: inline, Scope: "pay"})
	expectStatus(t, "BeginEffect", err, codes.Internal, "NON_IDEMPOTENT")
	e.expectNoEffect(t, id, "K")
}

func nonIdempotentScope(t T, e *Env) {
	id := e.begin(t)
	_, err := e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", Semantics: nonIdempotent, DispatchMode: outbox})
	expectStatus(t, "BeginEffect", err, codes.PermissionDenied, "scope")
	e.expectNoEffect(t, id, "K")
}

func scopeNotGranted(t T, e *Env) {
	id := e.begin(t)
	_, err := e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", ToolName: "wire", Scope: "admin"})
	expectStatus(t, "BeginEffect", err, codes.PermissionDenied, `policy violation — scope "admin" not granted to run`)
	e.expectNoEffect(t, id, "K")
	all := e.journal(t, id, 1)
	last := all[len(all)-1]
	p := payload(t, last)
	granted, _ := p["granted_scopes"].([]any)
	expect(t, last.GetKind() == "policy" && p["violation"] == "scope_not_granted" && p["required_scope"] == "admin" && p["tool"] == "wire" &&
		slices.Equal(granted, []any{"pay", "read"}), "the last entry is %v, want the violation", last)
}

func scopeGranted(t T, e *Env) {
	id := e.begin(t)
	r := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", Scope: "read"})
	expect(t, r.GetStatus() == pending, "BeginEffect under a granted scope = %v", r)
	expect(t, e.effect(t, id, "K").GetScope() == "read", "GetEffect = %v, want its scope", e.effect(t, id, "K"))
	req := e.request("without")
	req.Scopes = nil
	without, _ := e.Client.BeginRun(t.Context(), req)
	r = e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: without.GetRunId(), CustomKey: "K", Semantics: idempotent})
	expect(t, r.GetStatus() == pending, "BeginEffect without a scope = %v", r)
}

func businessKeyNeedsConnector(t T, e *Env) {
	id := e.begin(t)
	_, err := e.Try.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", BusinessKey: e.Name("b")})
	expect(t, status.Code(err) != codes.OK, "BeginEffect = %v, want a refusal", err)
	expectStatus(t, "BeginEffect", err, status.Code(err), "business_key requires connector")
	e.expectNoEffect(t, id, "K")
}

func businessKeyOverRuns(t T, e *Env) {
	a, b := e.begin(t), e.Begin(t, e.Process, "b").GetRunId()
	req := &tapepb.BeginEffectRequest{RunId: a, ToolName: "pay", Connector: e.Name("bank"), BusinessKey: "invoice-1"}
	first := e.beginEffect(t, req)
	req.RunId = b
	second := e.beginEffect(t, req)
	expect(t, second.GetIdempotencyKey() == first.GetIdempotencyKey() && second.GetSeq() == first.GetSeq(), "the second run is answered %v, want %v", second, first)
	e.expectNoEffect(t, b, fmt.Sprintf("%s/decision-0/pay/0", b))
	req.Connector = e.Name("other")
	third := e.beginEffect(t, req)
	expect(t, third.GetIdempotencyKey() == fmt.Sprintf("%s/decision-0/pay/0", b), "under another connector it is %v", third)
}
