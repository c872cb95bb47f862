package cuts_test

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// entry is one case of an RPC.
type entry struct {
	rpc string
	// what says which case it is; empty where the RPC has one.
	what  string
	setup func(e *env)
	do    func(e *env, by caller) (proto.Message, error)
	// rival is what another caller does to the same run. By default it takes the run over and makes
	// the request under the new grant, with its own name.
	rival func(e *env) (proto.Message, error)
	// again says why a repeat of the request acts again. Where it is empty, a repeat leaves the store
	// as it is.
	again string
	// answers says how such a repeat is answered where not as the first request.
	answers string
	// steps says that the RPC takes several commits, and that the next caller finishes what a cut one
	// leaves.
	steps bool
	// recreated says that the request may create its run again. The versions of the records then count
	// attempts that a deletion has undone.
	recreated bool
	// heartbeat says that a request that fails may have extended the lease.
	heartbeat bool
}

func (c entry) name() string {
	if c.what == "" {
		return c.rpc
	}
	return c.rpc + ", " + c.what
}

// entries are the cases of all writing RPCs.
func entries() []entry {
	return slices.Concat(runEntries, effectEntries, obligationEntries, ledgerEntries, sessionEntries, valueEntries, taskEntries)
}

// timeMS returns a time on the clocks of the stores, in milliseconds since 1970.
func timeMS(after time.Duration) int64 { return epoch.Add(after).UnixMilli() }

func beginRequest(invocation, owner string, f *tapepb.Fence) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: "treasury", UserId: "ana", SessionId: "s-1", InvocationId: invocation,
		LeaseOwner: owner, LeaseTtlMs: 60_000, Scopes: []string{"pay"}, Fence: f,
	}
}

// begin begins the case's run.
func begin(e *env) {
	r := must[*tapepb.BeginRunResponse](e)(e.clean.BeginRun(e.t.Context(), beginRequest("i", "host:1", nil)))
	g := r.GetGrant()
	e.run, e.fence = r.GetRunId(), &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId()}
}

// takeOver returns a caller that has taken the case's run over.
func takeOver(e *env) caller {
	r := must[*tapepb.BeginRunResponse](e)(e.clean.BeginRun(e.t.Context(), beginRequest("i", "host:2", nil)))
	g := r.GetGrant()
	return caller{e.t.Context(), e.clean, "host:2", &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId()}}
}

// second returns a caller that has no grant.
func (e *env) second() caller { return caller{e.t.Context(), e.clean, "host:2", nil} }

// act does what the rival does.
func (c entry) act(e *env) (proto.Message, error) {
	if c.rival != nil {
		return c.rival(e)
	}
	return c.do(e, takeOver(e))
}

// unfenced makes the request as another caller without a grant.
func unfenced(do func(*env, caller) (proto.Message, error)) func(*env) (proto.Message, error) {
	return func(e *env) (proto.Message, error) { return do(e, e.second()) }
}

const (
	released = "FENCED: the first has released the lease"
	notAgain = "not acquired, until the claim lapses"
)

const newGrant = "a request without a fence takes the lease under a new token"

var runEntries = []entry{
	{rpc: "BeginRun", what: "new run", do: doBegin, rival: unfenced(doBegin), again: newGrant},
	{rpc: "BeginRun", what: "takeover", setup: func(e *env) { begin(e); e.fence = nil }, do: doBegin, rival: unfenced(doBegin), again: newGrant},
	{rpc: "BeginRun", what: "entries meanwhile", setup: func(e *env) { begin(e); e.fence = nil }, do: doBegin, rival: unfenced(decide), again: newGrant},
	{rpc: "BeginRun", what: "under its fence", setup: begin, do: doBegin, heartbeat: true},
	{rpc: "BeginRun", what: "compacted run", again: newGrant, setup: func(e *env) {
		endedRun(e)
		must[*tapepb.CompactRunResponse](e)(e.clean.CompactRun(e.t.Context(), &tapepb.CompactRunRequest{RunId: e.run}))
		e.fence = nil
	}, do: doBegin, rival: unfenced(doBegin)},
	{rpc: "ResumeRun", what: "takeover", setup: func(e *env) {
		begin(e)
		takeOver(e)
		e.fence = nil
	}, do: doResume, answers: "as a heartbeat, without a grant"},
	{rpc: "ResumeRun", what: "under its fence", setup: begin, do: doResume, heartbeat: true},
	{rpc: "ResumeRun", what: "by the holder's name", setup: func(e *env) { begin(e); e.fence = nil }, do: doResume, heartbeat: true},
	{rpc: "EndRun", setup: begin, do: doEnd, answers: released},
	{rpc: "EndRun", what: "no fence", setup: func(e *env) { begin(e); e.fence = nil }, do: doEnd,
		again: "every end is journaled"},
	{rpc: "EndRun", what: "COMPENSATING", setup: begin, again: "every end is journaled, and this one keeps the lease",
		do: func(e *env, by caller) (proto.Message, error) {
			return by.EndRun(by, &tapepb.EndRunRequest{RunId: e.run, Status: tapepb.RunStatus_RUN_STATUS_COMPENSATING, DetailJson: by.name, Fence: by.fence})
		}},
	{rpc: "EndRun", what: "compacted run", again: "every end is journaled", setup: func(e *env) {
		endedRun(e)
		must[*tapepb.CompactRunResponse](e)(e.clean.CompactRun(e.t.Context(), &tapepb.CompactRunRequest{RunId: e.run}))
		e.fence = nil
	}, do: doEnd},
	{rpc: "RecordDecision", setup: begin, do: decide},
	{rpc: "CompactRun", setup: endedRun, do: doCompact, rival: resumed, answers: "already compacted"},
	{rpc: "CompactRun", what: "more rows than a commit takes", setup: func(e *env) {
		begin(e)
		manyDecisions(e)
		end(e)
	}, do: doCompact, rival: resumed, steps: true, answers: "already compacted"},
}

func doBegin(_ *env, by caller) (proto.Message, error) {
	return by.BeginRun(by, beginRequest("i", by.name, by.fence))
}

func doResume(e *env, by caller) (proto.Message, error) {
	return by.ResumeRun(by, &tapepb.ResumeRunRequest{RunId: e.run, LeaseOwner: by.name, LeaseTtlMs: 60_000, Fence: by.fence})
}

func doEnd(e *env, by caller) (proto.Message, error) {
	return by.EndRun(by, &tapepb.EndRunRequest{RunId: e.run, Status: tapepb.RunStatus_RUN_STATUS_FAILED, DetailJson: by.name, Fence: by.fence})
}

func decide(e *env, by caller) (proto.Message, error) {
	return by.RecordDecision(by, &tapepb.RecordDecisionRequest{RunId: e.run, Model: "m", ResponseJson: by.name, Fence: by.fence})
}

func doCompact(e *env, by caller) (proto.Message, error) {
	return by.CompactRun(by, &tapepb.CompactRunRequest{RunId: e.run})
}

// resumed begins the run again. BeginRun finishes a compaction that has begun.
func resumed(e *env) (proto.Message, error) {
	return e.clean.BeginRun(e.t.Context(), beginRequest("i", "host:2", nil))
}

// endedRun prepares a run that has ended with a decision and an effect.
func endedRun(e *env) {
	begin(e)
	must[*tapepb.DecisionRecord](e)(e.clean.RecordDecision(e.t.Context(), &tapepb.RecordDecisionRequest{RunId: e.run, ResponseJson: "{}", Fence: e.fence}))
	beginEffect(e, &tapepb.BeginEffectRequest{CustomKey: "k", RequestJson: "{}"})
	completeEffect(e, e.fence)
	end(e)
}

func end(e *env) {
	must[*tapepb.EndRunResponse](e)(e.clean.EndRun(e.t.Context(), &tapepb.EndRunRequest{RunId: e.run, Status: tapepb.RunStatus_RUN_STATUS_FAILED, Fence: e.fence}))
}

// effectEntries are about the effect "k" of the run.
var effectEntries = []entry{
	{rpc: "BeginEffect", setup: begin, do: func(e *env, by caller) (proto.Message, error) {
		return by.BeginEffect(by, &tapepb.BeginEffectRequest{RunId: e.run, CustomKey: "k", RequestJson: by.name, Fence: by.fence})
	}},
	{rpc: "BeginEffect", what: "scope", setup: begin, do: func(e *env, by caller) (proto.Message, error) {
		return by.BeginEffect(by, &tapepb.BeginEffectRequest{RunId: e.run, CustomKey: "k", RequestJson: by.name, Scope: "pay", Fence: by.fence})
	}},
	{rpc: "BeginEffect", what: "scope not granted", setup: begin, again: "every refusal is journaled",
		do: func(e *env, by caller) (proto.Message, error) {
			return by.BeginEffect(by, &tapepb.BeginEffectRequest{RunId: e.run, CustomKey: "k", Scope: "admin", Fence: by.fence})
		}},
	{rpc: "BeginEffect", what: "business key", setup: begin, do: beginInvoice},
	{rpc: "BeginEffect", what: "business key of another run's effect", setup: func(e *env) {
		begin(e)
		first := e.run
		r := must[*tapepb.BeginRunResponse](e)(e.clean.BeginRun(e.t.Context(), beginRequest("other", "host:1", nil)))
		e.run = r.GetRunId()
		beginEffect(e, &tapepb.BeginEffectRequest{CustomKey: "k", BusinessKey: "invoice-7", Connector: "bank"})
		e.run = first
	}, do: beginInvoice},
	{rpc: "CompleteEffect", setup: pending, do: func(e *env, by caller) (proto.Message, error) {
		return by.CompleteEffect(by, &tapepb.CompleteEffectRequest{RunId: e.run, IdempotencyKey: "k", Status: confirmed, ResponseJson: by.name, Fence: by.fence})
	}},
	{rpc: "CompleteEffect", what: "OUTBOX", setup: claimedEffect, do: func(e *env, by caller) (proto.Message, error) {
		return by.CompleteEffect(by, &tapepb.CompleteEffectRequest{
			RunId: e.run, IdempotencyKey: "k", Status: confirmed, ResponseJson: by.name, ClaimGeneration: e.generation})
	}, rival: func(e *env) (proto.Message, error) {
		by := reclaimEffect(e)
		return by.CompleteEffect(by, &tapepb.CompleteEffectRequest{
			RunId: e.run, IdempotencyKey: "k", Status: tapepb.EffectStatus_EFFECT_STATUS_FAILED, ErrorJson: by.name, ClaimGeneration: e.generation + 1})
	}},
	{rpc: "ReconcileEffect", what: "to CONFIRMED", setup: pending, do: reconcile(confirmed), rival: unfenced(reconcile(confirmed))},
	{rpc: "ReconcileEffect", what: "to UNKNOWN", setup: pending, do: reconcile(unknown), rival: unfenced(reconcile(unknown)),
		again: "an effect that stays open is reconciled, and journaled, once per request"},
	{rpc: "ReconcileEffect", what: "to PENDING, lapsed claim", setup: lapsedClaim,
		do: reconcile(stillPending), rival: unfenced(reconcile(stillPending)),
		again: "an effect that stays open is reconciled, and journaled, once per request; one that was dispatched since may be due again"},
	{rpc: "ClaimEffectDispatch", setup: outbox, do: claimEffect, rival: unfenced(claimEffect), answers: notAgain},
	{rpc: "ClaimEffectDispatch", what: "lapsed claim", setup: lapsedClaim,
		do: claimEffect, rival: unfenced(claimEffect), answers: notAgain},
	{rpc: "RecordDispatchAttempt", setup: claimedEffect, do: func(e *env, by caller) (proto.Message, error) {
		return reportDispatch(e, by, e.generation)
	}, rival: func(e *env) (proto.Message, error) { return reportDispatch(e, reclaimEffect(e), e.generation+1) }},
	{rpc: "RecordDispatchAttempt", what: "no generation", setup: claimedEffect, do: func(e *env, by caller) (proto.Message, error) {
		return reportDispatch(e, by, 0)
	}, again: "a report without a claim's generation is an attempt of its own",
		rival: func(e *env) (proto.Message, error) { return reportDispatch(e, reclaimEffect(e), 0) }},
	{rpc: "RecordExternalObservation", setup: outbox, do: observe(seenConfirmed), rival: unfenced(observe(seenConfirmed)),
		again: "every observation is journaled"},
	{rpc: "RecordExternalObservation", what: "ABSENT, lapsed claim", setup: lapsedClaim, do: observe(seenAbsent), rival: unfenced(observe(seenAbsent)),
		again: "every observation is journaled; one that was dispatched since may be due again"},
	{rpc: "RecordExternalObservation", what: "DUPLICATE", setup: claimedEffect, do: observe(seenTwice), rival: unfenced(observe(seenTwice)),
		again: "every observation is journaled; the obligation is registered once"},
}

const (
	stillPending = tapepb.EffectStatus_EFFECT_STATUS_PENDING
	confirmed    = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
	unknown      = tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN

	seenConfirmed = tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED
	seenAbsent    = tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT
	seenTwice     = tapepb.EffectResolution_EFFECT_RESOLUTION_DUPLICATE
)

func beginInvoice(e *env, by caller) (proto.Message, error) {
	return by.BeginEffect(by, &tapepb.BeginEffectRequest{
		RunId: e.run, CustomKey: "k", RequestJson: by.name, BusinessKey: "invoice-7", Connector: "bank", Fence: by.fence})
}

func beginEffect(e *env, req *tapepb.BeginEffectRequest) {
	req.RunId = e.run
	must[*tapepb.BeginEffectResponse](e)(e.clean.BeginEffect(e.t.Context(), req))
}

func completeEffect(e *env, f *tapepb.Fence) {
	must[*tapepb.EffectRecord](e)(e.clean.CompleteEffect(e.t.Context(), &tapepb.CompleteEffectRequest{
		RunId: e.run, IdempotencyKey: "k", Status: confirmed, ResponseJson: "{}", Fence: f}))
}

func pending(e *env) {
	begin(e)
	beginEffect(e, &tapepb.BeginEffectRequest{CustomKey: "k", ToolName: "pay"})
}

func outbox(e *env) {
	begin(e)
	beginEffect(e, &tapepb.BeginEffectRequest{
		CustomKey: "k", ToolName: "pay", Connector: "bank", DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX})
}

func claimedEffect(e *env) {
	outbox(e)
	r := must[*tapepb.ClaimEffectDispatchResponse](e)(e.clean.ClaimEffectDispatch(e.t.Context(), claimEffectRequest(e, "host:1")))
	e.generation = r.GetGeneration()
}

func lapsedClaim(e *env) {
	claimedEffect(e)
	e.advance(time.Hour)
}

func claimEffectRequest(e *env, claimer string) *tapepb.ClaimEffectDispatchRequest {
	return &tapepb.ClaimEffectDispatchRequest{RunId: e.run, IdempotencyKey: "k", Claimer: claimer, LeaseTtlMs: 60_000}
}

// reclaimEffect returns a dispatcher that has asked for the claim after it has lapsed.
func reclaimEffect(e *env) caller {
	e.advance(time.Hour)
	must[*tapepb.ClaimEffectDispatchResponse](e)(e.clean.ClaimEffectDispatch(e.t.Context(), claimEffectRequest(e, "host:2")))
	return e.second()
}

func claimEffect(e *env, by caller) (proto.Message, error) {
	return by.ClaimEffectDispatch(by, claimEffectRequest(e, by.name))
}

func reconcile(s tapepb.EffectStatus) func(*env, caller) (proto.Message, error) {
	return func(e *env, by caller) (proto.Message, error) {
		return by.ReconcileEffect(by, &tapepb.ReconcileEffectRequest{RunId: e.run, IdempotencyKey: "k", ResolvedStatus: s, ResponseJson: by.name})
	}
}

func reportDispatch(e *env, by caller, generation int64) (proto.Message, error) {
	return by.RecordDispatchAttempt(by, &tapepb.RecordDispatchAttemptRequest{
		RunId: e.run, IdempotencyKey: "k", Error: by.name, NextDispatchAtMs: timeMS(24 * time.Hour), ClaimGeneration: generation})
}

// observe reports an effect, as a DUPLICATE with an obligation.
func observe(seen tapepb.EffectResolution) func(*env, caller) (proto.Message, error) {
	return func(e *env, by caller) (proto.Message, error) {
		return by.RecordExternalObservation(by, &tapepb.RecordExternalObservationRequest{
			RunId: e.run, IdempotencyKey: "k", Resolution: seen, ExternalRef: by.name, CompensateOnDuplicateKind: "reverse"})
	}
}
