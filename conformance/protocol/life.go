package protocol

import (
	"strings"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Life takes an agent through a session, a run with decisions and effects, an outbox, a budget, a
// gate, a timer, obligations and compaction. The server's store must be empty, and the server must
// accept a driver's writes without a fence or apply them under the connection's grant.
func Life(t conformance.T, c tapepb.TapeClient) {
	ctx := t.Context()
	l := life{T: t, c: c}
	begin := &tapepb.BeginRunRequest{AppName: "app", UserId: "user", SessionId: "session", InvocationId: "1", LeaseOwner: "driver:1", Scopes: []string{"pay"}}

	session, err := c.CreateSession(ctx, &tapepb.CreateSessionRequest{AppName: "app", UserId: "user", SessionId: "session", StateJson: `{"step":0}`})
	l.check("CreateSession", err, session.GetSessionId() == "session")
	event, err := c.AppendEvent(ctx, &tapepb.AppendEventRequest{
		AppName: "app", UserId: "user", SessionId: "session", Event: &tapepb.EventRecord{Id: "e", ContentJson: `"` + strings.Repeat("x", 1_500_000) + `"`}, StateDeltaJson: `{"step":1}`,
	})
	l.check("AppendEvent", err, event.GetLastUpdateTimeMs() > 0)
	got, err := c.GetSession(ctx, &tapepb.GetSessionRequest{AppName: "app", UserId: "user", SessionId: "session"})
	l.check("GetSession", err, got.GetSession().GetStateJson() == `{"step":1}` && len(got.GetSession().GetEvents()) == 1 &&
		len(got.GetSession().GetEvents()[0].GetContentJson()) == 1_500_002)
	sessions, err := c.ListSessions(ctx, &tapepb.ListSessionsRequest{AppName: "app", UserId: "user"})
	l.check("ListSessions", err, len(sessions.GetSessions()) == 1)

	begun, err := c.BeginRun(ctx, begin)
	l.check("BeginRun", err, !begun.GetResumed() && begun.GetStatus() == tapepb.RunStatus_RUN_STATUS_RUNNING)
	id := begun.GetRunId()
	beat, err := c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "driver:1"})
	l.check("ResumeRun", err, beat.GetRun().GetToken() == begun.GetGrant().GetToken())
	budget, err := c.SetBudget(ctx, &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1})
	l.check("SetBudget", err, budget.GetUsdCap() == 1)
	admitted, err := c.AdmitBudget(ctx, &tapepb.AdmitBudgetRequest{RunId: id, UsdEstimate: 0.5})
	l.check("AdmitBudget", err, admitted.GetAdmitted())
	budget, err = c.ChargeBudget(ctx, &tapepb.ChargeBudgetRequest{RunId: id, Usd: 0.9, Tokens: 7})
	l.check("ChargeBudget", err, budget.GetUsdSpent() == 0.9 && budget.GetTokensSpent() == 7)
	refused, err := c.AdmitBudget(ctx, &tapepb.AdmitBudgetRequest{RunId: id, UsdEstimate: 0.5})
	l.check("AdmitBudget above the cap", err, !refused.GetAdmitted() && refused.GetReason() != "")
	_, err = c.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: id, ResponseJson: `{"tool":"pay"}`})
	l.check("RecordDecision", err, true)
	decision, err := c.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: id})
	l.check("GetDecision", err, decision.GetFound())

	inline, err := c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: id, ToolName: "look", Scope: "pay"})
	l.check("BeginEffect", err, inline.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_PENDING)
	done, err := c.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: inline.GetIdempotencyKey(), Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, ResponseJson: "1"})
	l.check("CompleteEffect", err, done.GetResponseJson() == "1")
	l.outbox(id)
	l.obligations(id)
	l.gate(id)
	timer, err := c.SetTimer(ctx, &tapepb.SetTimerRequest{RunId: id, FireAtMs: 1, Kind: "redrive"})
	l.check("SetTimer", err, timer.GetTimerId() != "")
	for _, want := range []int{1, 0} {
		due, err := c.ListDueTimers(ctx, &tapepb.ListDueTimersRequest{Claim: true})
		l.check("ListDueTimers", err, len(due.GetTimers()) == want)
	}
	cancelled, err := c.CancelTimer(ctx, &tapepb.CancelTimerRequest{RunId: id, TimerId: timer.GetTimerId()})
	l.check("CancelTimer", err, cancelled.GetCancelled())

	again, err := c.BeginRun(ctx, begin)
	l.check("BeginRun after a gate", err, again.GetResumed() && again.GetRunId() == id)
	ended, err := c.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL})
	l.check("EndRun", err, ended.GetRun().GetEndedAtMs() > 0)
	still, err := c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id})
	l.check("ResumeRun of an ended run", err, still.GetRun().GetStatus() == tapepb.RunStatus_RUN_STATUS_TERMINAL)
	listed, err := c.ListCompactableRuns(ctx, &tapepb.ListCompactableRunsRequest{BeforeMs: ended.GetRun().GetEndedAtMs() + 60_000})
	l.check("ListCompactableRuns", err, len(listed.GetRuns()) == 1)
	compacted, err := c.CompactRun(ctx, &tapepb.CompactRunRequest{RunId: id})
	l.check("CompactRun", err, compacted.GetDecisionsZeroed() == 1 && compacted.GetEffectsZeroed() >= 1 && compacted.GetBytesSaved() > 0)
	blank, err := c.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: id})
	l.check("GetDecision after a compaction", err, blank.GetFound() && blank.GetDecision().GetResponseJson() == "")
	value, err := c.WriteValue(ctx, &tapepb.WriteValueRequest{Namespace: "app", Key: "rate", ValueJson: "1.5", Writer: "driver:1"})
	l.check("WriteValue", err, value.GetVersion() == 1)
	read, err := c.GetValue(ctx, &tapepb.GetValueRequest{Namespace: "app", Key: "rate"})
	l.check("GetValue", err, read.GetFound() && read.GetValue().GetValueJson() == "1.5")
	deleted, err := c.DeleteValue(ctx, &tapepb.DeleteValueRequest{Namespace: "app", Key: "rate"})
	l.check("DeleteValue", err, deleted.GetDeleted() && deleted.GetVersion() == 2)
	gone, err := c.DeleteSession(ctx, &tapepb.DeleteSessionRequest{AppName: "app", UserId: "user", SessionId: "session"})
	l.check("DeleteSession", err, gone.GetDeleted())
}

// life holds what the steps of Life share.
type life struct {
	conformance.T
	c tapepb.TapeClient
}

// check ends the case if a call failed or returned an unexpected reply.
func (l life) check(what string, err error, ok bool) {
	l.Helper()
	if err != nil || !ok {
		l.Fatalf("%s: error %v, as expected: %t", what, err, ok)
	}
}

func (l life) outbox(id string) {
	ctx, c := l.Context(), l.c
	req := &tapepb.BeginEffectRequest{RunId: id, ToolName: "pay", CallIndex: 1, Connector: "bank", DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX, RequestJson: "{}", BusinessKey: "invoice-1"}
	effect, err := c.BeginEffect(ctx, req)
	l.check("BeginEffect of the outbox", err, effect.GetSeq() > 0)
	key := effect.GetIdempotencyKey()
	other, err := c.BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "app", UserId: "user", SessionId: "another session", InvocationId: "2", LeaseOwner: "driver:3"})
	l.check("BeginRun of another run", err, !other.GetResumed())
	req = &tapepb.BeginEffectRequest{RunId: other.GetRunId(), ToolName: "pay", Connector: "bank", BusinessKey: "invoice-1"}
	same, err := c.BeginEffect(ctx, req)
	l.check("BeginEffect of the same business key", err, same.GetIdempotencyKey() == key && same.GetSeq() == effect.GetSeq())
	for _, connector := range []string{"bank", ""} {
		due, err := c.ListEffectsToDispatch(ctx, &tapepb.ListEffectsToDispatchRequest{Connector: connector})
		l.check("ListEffectsToDispatch", err, len(due.GetEffects()) == 1 && due.GetEffects()[0].GetIdempotencyKey() == key)
	}
	claim, err := c.ClaimEffectDispatch(ctx, &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: key, Claimer: "A"})
	l.check("ClaimEffectDispatch", err, claim.GetAcquired() && claim.GetGeneration() == 1)
	lost, err := c.ClaimEffectDispatch(ctx, &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: key, Claimer: "B"})
	l.check("ClaimEffectDispatch by another", err, !lost.GetAcquired() && lost.GetEffect().GetDispatchClaimedBy() == "A")
	failed, err := c.RecordDispatchAttempt(ctx, &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: key, Error: "timeout", ClaimGeneration: 1})
	l.check("RecordDispatchAttempt", err, failed.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN)
	open, err := c.ListPendingEffects(ctx, &tapepb.ListPendingEffectsRequest{IncludeUnknown: true})
	l.check("ListPendingEffects", err, len(open.GetEffects()) == 1)
	seen, err := c.RecordExternalObservation(ctx, &tapepb.RecordExternalObservationRequest{
		RunId: id, IdempotencyKey: key, Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_DUPLICATE, ExternalRef: "ref", CompensateOnDuplicateKind: "reverse",
	})
	l.check("RecordExternalObservation", err, seen.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED)
	reconciled, err := c.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: key, ResolvedStatus: tapepb.EffectStatus_EFFECT_STATUS_FAILED})
	l.check("ReconcileEffect", err, reconciled.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED)
}

// obligations resolves the obligation that the observation registered, and one more.
func (l life) obligations(id string) {
	ctx, c := l.Context(), l.c
	own, err := c.RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "K", Kind: "undo"})
	l.check("RegisterCompensation", err, own.GetSeq() > 0)
	all, err := c.ListObligations(ctx, &tapepb.ListObligationsRequest{RunId: id, OnlyUnresolved: true})
	l.check("ListObligations", err, len(all.GetObligations()) == 2 && all.GetObligations()[0].GetSeq() == own.GetSeq())
	due, err := c.ListUnresolvedObligations(ctx, &tapepb.ListUnresolvedObligationsRequest{})
	l.check("ListUnresolvedObligations", err, len(due.GetObligations()) == 2)
	for _, o := range due.GetObligations() {
		claim, err := c.ClaimObligation(ctx, &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: o.GetSeq(), Claimer: "A"})
		l.check("ClaimObligation", err, claim.GetAcquired())
		if o.GetSeq() == own.GetSeq() {
			failed, err := c.RecordObligationAttempt(ctx, &tapepb.RecordObligationAttemptRequest{RunId: id, ObligationSeq: o.GetSeq(), Error: "no"})
			l.check("RecordObligationAttempt", err, failed.GetStatus() == tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK)
			continue
		}
		resolved, err := c.ResolveObligation(ctx, &tapepb.ResolveObligationRequest{RunId: id, ObligationSeq: o.GetSeq(), Status: tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED})
		l.check("ResolveObligation", err, resolved.GetStatus() == tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED)
	}
}

func (l life) gate(id string) {
	ctx, c := l.Context(), l.c
	parked, err := c.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: id, GateName: "approval"})
	l.check("AwaitSignal", err, !parked.GetDelivered())
	waiting, err := c.GetRun(ctx, &tapepb.GetRunRequest{RunId: id})
	l.check("GetRun", err, waiting.GetStatus() == tapepb.RunStatus_RUN_STATUS_WAITING && waiting.GetWaitingOnGate() == "approval")
	sent, err := c.SendSignal(ctx, &tapepb.SendSignalRequest{AppName: "app", UserId: "user", SessionId: "session", GateName: "approval", ResolutionJson: "true"})
	l.check("SendSignal", err, sent.GetRunId() == id && sent.GetRunStatus() == tapepb.RunStatus_RUN_STATUS_RUNNABLE)
	runs, err := c.ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{})
	l.check("ListRunsToRecover", err, len(runs.GetRuns()) == 1)
	begun, err := c.BeginRun(ctx, &tapepb.BeginRunRequest{AppName: "app", UserId: "user", SessionId: "session", InvocationId: "1", LeaseOwner: "driver:2"})
	l.check("BeginRun of a released run", err, begun.GetResumed())
	delivered, err := c.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: id, GateName: "approval"})
	l.check("AwaitSignal of a signal", err, delivered.GetDelivered() && delivered.GetResolutionJson() == "true")
}
