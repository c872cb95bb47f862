package protocol

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func journalCases() []Case {
	return []Case{
		{Group: "journal", Check: 12, Name: "stream-follows-the-run", Run: streamFollows,
			Doc: "SubscribeRun sends existing entries in strictly increasing seq, then new entries, also after the run's end, until the caller ends it."},
		{Group: "journal", Check: 13, Name: "from-seq-is-inclusive", Run: fromSeq,
			Doc: "SubscribeRun from a seq begins with that entry."},
		{Group: "journal", Check: 14, Name: "first-and-last-entry", Run: firstAndLast,
			Doc: "The first entry of a run says running, and the last one after EndRun says terminal."},
		{Group: "journal", Check: 15, Name: "effect-entry-has-semantics-and-mode", Run: effectEntry,
			Doc: "The entry that begins an effect has its semantics and its dispatch mode as numbers."},
		{Group: "decisions", Check: 16, Name: "recorded-decision-is-found", Run: decisionIsFound,
			Doc: "GetDecision returns what RecordDecision stored, and reports that another index has no decision."},
		{Group: "decisions", Check: 17, Name: "first-decision-stays", Run: firstDecisionStays,
			Doc: "RecordDecision of a recorded index returns the first content, and journals nothing."},
	}
}

func streamFollows(t T, e *Env) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	id := e.begin(t)
	effect := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, ToolName: "look"})
	stream, err := e.Try.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id})
	if err != nil {
		t.Fatalf("SubscribeRun: %v", err)
	}
	last, kinds := int64(0), []string{}
	receive := func(kind string) {
		t.Helper()
		for {
			entry, err := stream.Recv()
			if err != nil {
				t.Fatalf("waiting for an entry of kind %s: %v", kind, err)
			}
			expect(t, entry.GetSeq() > last, "entry %d comes after entry %d", entry.GetSeq(), last)
			last = entry.GetSeq()
			kinds = append(kinds, entry.GetKind())
			if entry.GetKind() == kind {
				return
			}
		}
	}
	receive("effect")
	e.decide(t, id, 0)
	receive("decision")
	e.complete(t, id, effect.GetIdempotencyKey(), confirmed, "1")
	receive("effect")
	_, _ = e.Client.RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "K", Kind: "undo"})
	receive("obligation")
	_, _ = e.Client.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: id, GateName: "g"})
	receive("gate")
	_, _ = e.Client.SendSignal(ctx, &tapepb.SendSignalRequest{RunId: id, GateName: "g"})
	receive("gate")
	_, _ = e.Client.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: cancelled})
	receive("run")
	_, _ = e.Client.RecordExternalObservation(ctx, &tapepb.RecordExternalObservationRequest{
		RunId: id, IdempotencyKey: effect.GetIdempotencyKey(), Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED,
	})
	receive("effect")
	want := []string{"run", "effect", "decision", "effect", "obligation", "gate", "gate", "run", "effect"}
	expect(t, slices.Equal(kinds, want), "the entries are of kinds %q, want %q", kinds, want)
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the stream ends with %v before its caller ends it", err)
	}
}

// decide records a decision.
func (p *Process) decide(t T, run string, index int64) *tapepb.DecisionRecord {
	t.Helper()
	d, _ := p.Client.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
		RunId: run, DecisionIndex: index, Model: "m", RequestJson: `{"q":1}`, ResponseJson: `{"a":1}`, Rationale: "why", PolicyVersion: "v1",
	})
	return d
}

// beginEffect begins an effect.
func (p *Process) beginEffect(t T, req *tapepb.BeginEffectRequest) *tapepb.BeginEffectResponse {
	t.Helper()
	r, _ := p.Client.BeginEffect(t.Context(), req)
	return r
}

// complete records the outcome of an effect.
func (p *Process) complete(t T, run, key string, outcome tapepb.EffectStatus, response string) *tapepb.EffectRecord {
	t.Helper()
	r, _ := p.Client.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: run, IdempotencyKey: key, Status: outcome, ResponseJson: response})
	return r
}

func fromSeq(t T, e *Env) {
	id := e.begin(t)
	for i := range 5 {
		e.decide(t, id, int64(i))
	}
	all := e.journal(t, id, 0)
	for i, entry := range all {
		from := e.journal(t, id, entry.GetSeq())
		expect(t, from[0].GetSeq() == entry.GetSeq() && len(from) == len(all)-i,
			"from seq %d: %d entries from seq %d, want %d", entry.GetSeq(), len(from), from[0].GetSeq(), len(all)-i)
	}
}

func firstAndLast(t T, e *Env) {
	id := e.begin(t)
	e.decide(t, id, 0)
	_, _ = e.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: terminal})
	all := e.journal(t, id, 0)
	first, last := all[0], all[len(all)-1]
	expect(t, first.GetKind() == "run" && payload(t, first)["status"] == "running" && payload(t, first)["run_id"] == id, "the first entry is %v", first)
	expect(t, last.GetKind() == "run" && payload(t, last)["status"] == "terminal", "the last entry is %v", last)
	for _, entry := range all {
		expect(t, entry.GetTsMs() > 0 && entry.GetSchemaVersion() == 1, "entry %v has no time, or another schema version than 1", entry)
	}
}

func effectEntry(t T, e *Env) {
	id := e.begin(t)
	effect := e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, ToolName: "wire", Semantics: nonIdempotent, DispatchMode: outbox, Scope: "pay"})
	all := e.journal(t, id, effect.GetSeq())
	p := payload(t, all[0])
	expect(t, all[0].GetKind() == "effect" && p["status"] == "pending" && p["semantics"] == 2.0 && p["dispatch_mode"] == 2.0 && p["tool"] == "wire",
		"the entry is %v", all[0])
}

func decisionIsFound(t T, e *Env) {
	id := e.begin(t)
	d := e.decide(t, id, 0)
	expect(t, d.GetSeq() > 0 && d.GetTsMs() > 0, "RecordDecision = %v, want a seq and a time", d)
	r, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
	got := r.GetDecision()
	expect(t, r.GetFound() && got.GetResponseJson() == `{"a":1}` && got.GetRequestJson() == `{"q":1}` && got.GetModel() == "m" &&
		got.GetRationale() == "why" && got.GetPolicyVersion() == "v1" && got.GetSeq() == d.GetSeq(), "GetDecision = %v, want %v", r, d)
	r, _ = e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id, DecisionIndex: 1})
	expect(t, !r.GetFound() && r.GetDecision() == nil, "GetDecision of the next index = %v, want nothing", r)
}

func firstDecisionStays(t T, e *Env) {
	id := e.begin(t)
	first := e.decide(t, id, 0)
	cursor := e.run(t, id).GetSeqCursor()
	again, _ := e.Client.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, Model: "other", ResponseJson: "other"})
	expect(t, again.GetSeq() == first.GetSeq() && again.GetResponseJson() == first.GetResponseJson() && again.GetModel() == "m",
		"RecordDecision = %v, want %v", again, first)
	expect(t, e.run(t, id).GetSeqCursor() == cursor, "the second call has journaled")
}
