package protocol

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func compactionCases() []Case {
	return []Case{
		{Group: "compaction", Check: 75, Name: "bodies-are-blank", Run: bodiesAreBlank,
			Doc: "CompactRun blanks the bodies of a settled run and nothing else, counts them, and does so once."},
		{Group: "compaction", Check: 76, Name: "unsettled-is-refused", Run: unsettledIsRefused,
			Doc: "A run that has not ended, a run with an UNKNOWN effect and a run with an open obligation are not compacted."},
		{Group: "compaction", Check: 77, Name: "compactable-runs-are-listed", Run: compactableListed,
			Doc: "ListCompactableRuns lists runs that ended before a time and were not compacted."},
	}
}

// end ends a run.
func (p *Process) end(t T, run string, s tapepb.RunStatus) *tapepb.RunState {
	t.Helper()
	r, _ := p.Client.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: run, Status: s})
	return r.GetRun()
}

func (p *Process) compact(t T, run string) *tapepb.CompactRunResponse {
	t.Helper()
	r, _ := p.Client.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: run})
	return r
}

// finished begins a run, gives it decision 0 and the CONFIRMED effect K, and ends it.
func (e *Env) finished(t T, invocation string) string {
	t.Helper()
	id := e.Begin(t, e.Process, invocation).GetRunId()
	e.decide(t, id, 0)
	e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", ToolName: "tool", Connector: "c", RequestJson: `{"q":1}`})
	e.complete(t, id, "K", confirmed, `{"a":1}`)
	e.end(t, id, terminal)
	return id
}

func bodiesAreBlank(t T, e *Env) {
	id := e.finished(t, "i")
	r := e.compact(t, id)
	expect(t, !r.GetAlreadyCompacted() && r.GetDecisionsZeroed() == 1 && r.GetEffectsZeroed() == 1 && r.GetBytesSaved() > 0, "CompactRun = %v", r)
	d, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
	got := d.GetDecision()
	expect(t, got.GetRequestJson() == "" && got.GetResponseJson() == "" && got.GetRationale() == "" && got.GetModel() == "m" && got.GetPolicyVersion() == "v1" && got.GetSeq() > 0,
		"the decision is %v, want it without bodies", got)
	effect := e.effect(t, id, "K")
	expect(t, effect.GetRequestJson() == "" && effect.GetResponseJson() == "" && effect.GetStatus() == confirmed && effect.GetToolName() == "tool" && effect.GetConnector() == "c",
		"the effect is %v, want it without bodies", effect)
	all := e.journal(t, id, 1)
	last := all[len(all)-1]
	p := payload(t, last)
	at, _ := p["compacted_at_ms"].(float64)
	expect(t, last.GetKind() == "run" && at > 0 && p["decisions_zeroed"] == 1.0 && p["effects_zeroed"] == 1.0 && p["bytes_saved"] == float64(r.GetBytesSaved()),
		"the last entry is %v, want the compaction", last)
	again := e.compact(t, id)
	expect(t, again.GetAlreadyCompacted() && again.GetDecisionsZeroed()+again.GetEffectsZeroed()+again.GetBytesSaved() == 0, "a second CompactRun = %v", again)
	expect(t, e.run(t, id).GetSeqCursor() == last.GetSeq(), "the second CompactRun has journaled")
}

// refuseCompaction checks that compaction of a run is refused, and that the run's decision keeps
// its bodies.
func (e *Env) refuseCompaction(t T, run, text string) {
	t.Helper()
	_, err := e.Try.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: run})
	require(t, status.Code(err) != codes.OK, "CompactRun of a run that is %s succeeds", text)
	expectStatus(t, "CompactRun", err, status.Code(err), text)
	d, _ := e.Client.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: run})
	expect(t, d.GetDecision().GetResponseJson() == `{"a":1}`, "after a refused CompactRun the decision is %v", d)
}

func unsettledIsRefused(t T, e *Env) {
	active := e.begin(t)
	e.decide(t, active, 0)
	e.refuseCompaction(t, active, "not terminal")

	open := e.Begin(t, e.Process, "effect").GetRunId()
	e.decide(t, open, 0)
	e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: open, CustomKey: "K"})
	e.complete(t, open, "K", unknown, "")
	e.end(t, open, terminal)
	e.refuseCompaction(t, open, "not settled")
	_, _ = e.Client.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: open, IdempotencyKey: "K", ResolvedStatus: failed})
	expect(t, e.compact(t, open).GetDecisionsZeroed() == 1, "after the reconciliation the run is not compacted")

	owing := e.Begin(t, e.Process, "obligation").GetRunId()
	e.decide(t, owing, 0)
	o := e.owe(t, owing, "K", 0)
	e.end(t, owing, terminal)
	e.refuseCompaction(t, owing, "not settled")
	e.claimObligation(t, o, "A", 0)
	e.refuseCompaction(t, owing, "not settled")
	e.resolve(t, o, compensated)
	expect(t, e.compact(t, owing).GetDecisionsZeroed() == 1, "after the resolution the run is not compacted")
}

// compactable reports whether ListCompactableRuns lists a run.
func (p *Process) compactable(t T, run string, before int64) bool {
	t.Helper()
	r, _ := p.Client.ListCompactableRuns(t.Context(), &tapepb.ListCompactableRunsRequest{BeforeMs: before, Limit: everything})
	return slices.ContainsFunc(r.GetRuns(), func(got *tapepb.RunState) bool { return got.GetRunId() == run })
}

func compactableListed(t T, e *Env) {
	active := e.Begin(t, e.Process, "active").GetRunId()
	id := e.finished(t, "i")
	ended := e.run(t, id).GetEndedAtMs()
	expect(t, e.compactable(t, id, ended+60_000), "a run that has ended is not listed")
	expect(t, !e.compactable(t, active, ended+60_000), "a run that goes on is listed")
	expect(t, !e.compactable(t, id, ended-1000), "a run is listed by a time before its end")
	e.compact(t, id)
	expect(t, !e.compactable(t, id, ended+60_000), "a compacted run is listed")
}
