package cuts_test

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// obligationEntries are about the obligation e.seq of the run.
var obligationEntries = []entry{
	{rpc: "RegisterCompensation", setup: begin, do: func(e *env, by caller) (proto.Message, error) {
		return by.RegisterCompensation(by, &tapepb.RegisterCompensationRequest{
			RunId: e.run, EffectKey: "k", Kind: "reverse", PayloadJson: by.name, Fence: by.fence})
	}},
	{rpc: "ClaimObligation", setup: obligation, do: claimObligation, rival: unfenced(claimObligation), answers: notAgain},
	{rpc: "ClaimObligation", what: "lapsed claim", setup: func(e *env) { claimedObligation(e); e.advance(time.Hour) },
		do: claimObligation, rival: unfenced(claimObligation), answers: notAgain},
	{rpc: "RecordObligationAttempt", setup: claimedObligation, do: func(e *env, by caller) (proto.Message, error) {
		return reportAttempt(e, by, e.generation)
	}, rival: func(e *env) (proto.Message, error) { return reportAttempt(e, reclaimObligation(e), e.generation+1) }},
	{rpc: "RecordObligationAttempt", what: "no generation", setup: claimedObligation, do: func(e *env, by caller) (proto.Message, error) {
		return reportAttempt(e, by, 0)
	}, again: "a report without a claim's generation is an attempt of its own",
		rival: func(e *env) (proto.Message, error) { return reportAttempt(e, reclaimObligation(e), 0) }},
	{rpc: "ResolveObligation", setup: claimedObligation, do: func(e *env, by caller) (proto.Message, error) {
		return resolve(e, by, e.generation)
	}, rival: func(e *env) (proto.Message, error) { return resolve(e, reclaimObligation(e), e.generation+1) }},
}

func obligation(e *env) {
	begin(e)
	o := must[*tapepb.ObligationRecord](e)(e.clean.RegisterCompensation(e.t.Context(), &tapepb.RegisterCompensationRequest{
		RunId: e.run, EffectKey: "k", Kind: "reverse", Fence: e.fence}))
	e.seq = o.GetSeq()
}

func claimedObligation(e *env) {
	obligation(e)
	r := must[*tapepb.ClaimObligationResponse](e)(e.clean.ClaimObligation(e.t.Context(), claimObligationRequest(e, "host:1")))
	e.generation = r.GetGeneration()
}

func claimObligationRequest(e *env, claimer string) *tapepb.ClaimObligationRequest {
	return &tapepb.ClaimObligationRequest{RunId: e.run, ObligationSeq: e.seq, Claimer: claimer, LeaseTtlMs: 60_000}
}

// reclaimObligation returns a worker that has asked for the claim after it has lapsed.
func reclaimObligation(e *env) caller {
	e.advance(time.Hour)
	must[*tapepb.ClaimObligationResponse](e)(e.clean.ClaimObligation(e.t.Context(), claimObligationRequest(e, "host:2")))
	return e.second()
}

func claimObligation(e *env, by caller) (proto.Message, error) {
	return by.ClaimObligation(by, claimObligationRequest(e, by.name))
}

func reportAttempt(e *env, by caller, generation int64) (proto.Message, error) {
	return by.RecordObligationAttempt(by, &tapepb.RecordObligationAttemptRequest{
		RunId: e.run, ObligationSeq: e.seq, Error: by.name, NextAttemptAtMs: timeMS(24 * time.Hour), ClaimGeneration: generation})
}

func resolve(e *env, by caller, generation int64) (proto.Message, error) {
	return by.ResolveObligation(by, &tapepb.ResolveObligationRequest{
		RunId: e.run, ObligationSeq: e.seq, ResultJson: by.name, ClaimGeneration: generation})
}

// ledgerEntries are about budgets, gates and timers.
var ledgerEntries = []entry{
	{rpc: "SetBudget", setup: begin, again: "the caps are replaced by equal ones", do: func(e *env, by caller) (proto.Message, error) {
		return by.SetBudget(by, &tapepb.SetBudgetRequest{RunId: e.run, UsdCap: 5, TokenCap: int64(len(by.name)), Fence: by.fence})
	}},
	{rpc: "ChargeBudget", setup: begin, do: charge, again: twoCharges},
	{rpc: "ChargeBudget", what: "spent before", setup: func(e *env) {
		begin(e)
		must[proto.Message](e)(charge(e, e.first(e.clean)))
	}, do: charge, again: twoCharges},
	{rpc: "AwaitSignal", what: "parks", setup: begin, do: await, answers: released},
	{rpc: "AwaitSignal", what: "delivered", setup: func(e *env) { begin(e); signal(e) }, do: await},
	{rpc: "AwaitSignal", what: "signal meanwhile", setup: begin, do: await, rival: unfenced(send), answers: released},
	{rpc: "SendSignal", what: "filed", setup: begin, do: send, rival: unfenced(send), again: "a later signal replaces an earlier one"},
	{rpc: "SendSignal", what: "releases", setup: parked, do: send, rival: unfenced(send), again: "a later signal replaces an earlier one"},
	{rpc: "SendSignal", what: "parks meanwhile", setup: begin, do: send, again: "a later signal replaces an earlier one",
		rival: func(e *env) (proto.Message, error) { return await(e, e.first(e.clean)) }},
	{rpc: "SendSignal", what: "to a session", setup: parked, again: "a later signal replaces an earlier one",
		do: func(e *env, by caller) (proto.Message, error) {
			return by.SendSignal(by, &tapepb.SendSignalRequest{
				AppName: "treasury", UserId: "ana", SessionId: "s-1", GateName: "g", ResolutionJson: by.name})
		}},
	{rpc: "SetTimer", what: "new", setup: begin, do: setTimer("t"), rival: unfenced(setTimer("t"))},
	{rpc: "SetTimer", what: "changed", setup: timer, do: setTimer("t"), rival: unfenced(setTimer("t"))},
	{rpc: "SetTimer", what: "no id", setup: begin, do: setTimer(""), rival: unfenced(setTimer("")),
		again: "the server makes up an id for each request"},
	{rpc: "CancelTimer", setup: timer, do: cancelTimer, rival: unfenced(setTimer("t")), answers: "not cancelled"},
	{rpc: "ListDueTimers", what: "claiming", setup: timer, do: claimTimers, rival: unfenced(claimTimers), answers: lostTimers},
	{rpc: "ListDueTimers", what: "claiming, cancelled meanwhile", setup: timer, do: claimTimers, rival: unfenced(cancelTimer), answers: lostTimers},
}

const twoCharges = "charges twice: a charge has no identity"

const lostTimers = "without the timers that the first fired, which are lost with its answer"

func charge(e *env, by caller) (proto.Message, error) {
	return by.ChargeBudget(by, &tapepb.ChargeBudgetRequest{RunId: e.run, Usd: 1, Tokens: 10, Fence: by.fence})
}

func await(e *env, by caller) (proto.Message, error) {
	return by.AwaitSignal(by, &tapepb.AwaitSignalRequest{RunId: e.run, GateName: "g", PayloadJson: by.name, Fence: by.fence})
}

func send(e *env, by caller) (proto.Message, error) {
	return by.SendSignal(by, &tapepb.SendSignalRequest{RunId: e.run, GateName: "g", ResolutionJson: by.name})
}

func signal(e *env) { must[proto.Message](e)(send(e, e.first(e.clean))) }

func parked(e *env) {
	begin(e)
	must[proto.Message](e)(await(e, e.first(e.clean)))
}

func setTimer(id string) func(*env, caller) (proto.Message, error) {
	return func(e *env, by caller) (proto.Message, error) {
		return by.SetTimer(by, &tapepb.SetTimerRequest{
			RunId: e.run, TimerId: id, FireAtMs: timeMS(0), Kind: "wake", PayloadJson: by.name})
	}
}

func timer(e *env) {
	begin(e)
	must[proto.Message](e)(setTimer("t")(e, caller{e.t.Context(), e.clean, "before", nil}))
}

func cancelTimer(e *env, by caller) (proto.Message, error) {
	return by.CancelTimer(by, &tapepb.CancelTimerRequest{RunId: e.run, TimerId: "t"})
}

func claimTimers(_ *env, by caller) (proto.Message, error) {
	return by.ListDueTimers(by, &tapepb.ListDueTimersRequest{Claim: true})
}

const replaced = "the state is replaced by an equal one, and the time of the last update"

var sessionEntries = []entry{
	{rpc: "CreateSession", what: "new", do: createSession("s"), rival: unfenced(createSession("s")), again: replaced},
	{rpc: "CreateSession", what: "existing", setup: session, do: createSession("s"), rival: unfenced(appendEvent), again: replaced},
	{rpc: "CreateSession", what: "deleted meanwhile", setup: session, do: createSession("s"), rival: unfenced(deleteSession), again: replaced, recreated: true},
	{rpc: "CreateSession", what: "no id", do: createSession(""), rival: unfenced(createSession("")),
		again: "the server makes up an id for each request"},
	{rpc: "AppendEvent", what: "new session", do: appendEvent, rival: unfenced(appendEvent), again: eventAgain},
	{rpc: "AppendEvent", what: "existing session", setup: session, do: appendEvent, rival: unfenced(appendEvent), again: eventAgain},
	{rpc: "AppendEvent", what: "deleted meanwhile", setup: session, do: appendEvent, rival: unfenced(deleteSession), again: eventAgain, recreated: true},
	{rpc: "DeleteSession", setup: session, do: deleteSession, rival: unfenced(appendEvent), answers: "not deleted"},
}

var valueEntries = []entry{
	{rpc: "WriteValue", what: "new value", do: writeValue(-1), rival: unfenced(writeValue(-1)), again: versionAgain},
	{rpc: "WriteValue", what: "any version", setup: valueAtOne, do: writeValue(-1), rival: unfenced(writeValue(-1)), again: versionAgain},
	{rpc: "WriteValue", what: "at a version", setup: valueAtOne, do: writeValue(1), rival: unfenced(writeValue(-1)), answers: "version conflict"},
	{rpc: "DeleteValue", setup: valueAtOne, do: deleteValue, rival: unfenced(writeValue(-1)), again: versionAgain},
}

const versionAgain = "each call is a version of its own"

func writeValue(at int64) func(*env, caller) (proto.Message, error) {
	return func(_ *env, by caller) (proto.Message, error) {
		return by.WriteValue(by, &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: by.name, IfVersion: at, Writer: by.name})
	}
}

func deleteValue(_ *env, by caller) (proto.Message, error) {
	return by.DeleteValue(by, &tapepb.DeleteValueRequest{Namespace: "n", Key: "k"})
}

func valueAtOne(e *env) {
	must[proto.Message](e)(writeValue(0)(e, caller{e.t.Context(), e.clean, "before", nil}))
}

const eventAgain = "appends twice: an event's id is no identity"

func createSession(id string) func(*env, caller) (proto.Message, error) {
	return func(_ *env, by caller) (proto.Message, error) {
		return by.CreateSession(by, &tapepb.CreateSessionRequest{AppName: "a", UserId: "u", SessionId: id, StateJson: `{"by":"` + by.name + `"}`})
	}
}

func appendEvent(_ *env, by caller) (proto.Message, error) {
	return by.AppendEvent(by, &tapepb.AppendEventRequest{
		AppName: "a", UserId: "u", SessionId: "s", StateDeltaJson: `{"` + by.name + `":1}`,
		Event: &tapepb.EventRecord{Id: "event-of-" + by.name, ContentJson: by.name},
	})
}

func deleteSession(_ *env, by caller) (proto.Message, error) {
	return by.DeleteSession(by, &tapepb.DeleteSessionRequest{AppName: "a", UserId: "u", SessionId: "s"})
}

func session(e *env) {
	must[proto.Message](e)(createSession("s")(e, caller{e.t.Context(), e.clean, "before", nil}))
}

// manyDecisions records more decisions than one commit blanks.
func manyDecisions(e *env) {
	for i := range 260 {
		d := tape.Decision{Index: int64(i), Response: "{}"}
		must[tape.Decision](e)(e.tape.RecordDecision(e.t.Context(), runstore.RunID(e.run), d, runstore.Fence{}))
	}
}
