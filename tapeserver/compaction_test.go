package tapeserver_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// beginWithBodies begins a run with a decision and an effect that have bodies.
func beginWithBodies(t *testing.T, c tapepb.TapeClient, invocation string, status tapepb.EffectStatus) string {
	t.Helper()
	id := begin(t, c, invocation).GetRunId()
	_, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
		RunId: id, Model: "m", RequestJson: "{}", ResponseJson: "[1]", Rationale: "why", PolicyVersion: "p1"})
	if err == nil {
		_, err = c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", ToolName: "pay", RequestJson: "{}"})
	}
	if err == nil {
		_, err = c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "K", Status: status, ResponseJson: "{}"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func endRun(t *testing.T, c tapepb.TapeClient, id string) {
	t.Helper()
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
}

func TestCompactRun(t *testing.T) { // 75, 76, 77
	t.Parallel()
	store := memory.New(nil)
	handle := store.Open()
	c, _ := start(t, handle, nil)
	id, active := beginWithBodies(t, c, "i", confirmed), beginWithBodies(t, c, "active", confirmed)
	_, err := c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: id})
	wantStatus(t, "CompactRun of a RUNNING run", err, codes.Internal, "tape store: compact_run: run "+id+" is not terminal (status=2, ended_at_ms=0)")
	_, err = c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: "none"})
	wantStatus(t, "CompactRun of no run", err, codes.Internal, "tape store: compact_run: run_id none not found")

	endRun(t, c, id)
	ended := getRun(t, c, id)
	list := func(before int64) []string {
		t.Helper()
		l, err := c.ListCompactableRuns(t.Context(), &tapepb.ListCompactableRunsRequest{BeforeMs: before})
		if err != nil {
			t.Fatal(err)
		}
		ids := []string{}
		for _, r := range l.GetRuns() {
			if r.GetRunId() == active || !proto.Equal(r, getRun(t, c, r.GetRunId())) {
				t.Errorf("listed %v", r)
			}
			ids = append(ids, r.GetRunId())
		}
		return ids
	}
	end := ended.GetEndedAtMs()
	for before, want := range map[int64]int{end + 60_000: 1, end + 1: 1, end: 0, end - 1000: 0} {
		if got := list(before); len(got) != want {
			t.Errorf("compactable before %d: %v, want %d", before, got, want)
		}
	}
	store.Advance(time.Second)
	if got := list(0); len(got) != 1 {
		t.Errorf("compactable by the store clock: %v, want 1", got)
	}
	r, err := c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: id})
	if want := (&tapepb.CompactRunResponse{DecisionsZeroed: 1, EffectsZeroed: 1, BytesSaved: 9}); err != nil || !proto.Equal(r, want) {
		t.Errorf("CompactRun = %v, %v, want %v", r, err, want)
	}
	d, err := c.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
	if got := d.GetDecision(); err != nil || got.GetRequestJson()+got.GetResponseJson()+got.GetRationale() != "" ||
		got.GetModel() != "m" || got.GetPolicyVersion() != "p1" || got.GetSeq() != 2 {
		t.Errorf("decision = %v, %v, want it without bodies", got, err)
	}
	e, err := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: "K"})
	if got := e.GetEffect(); err != nil || got.GetRequestJson()+got.GetResponseJson() != "" || got.GetToolName() != "pay" || got.GetStatus() != confirmed {
		t.Errorf("effect = %v, %v, want it without bodies", got, err)
	}
	r, err = c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: id})
	if want := (&tapepb.CompactRunResponse{AlreadyCompacted: true}); err != nil || !proto.Equal(r, want) {
		t.Errorf("CompactRun again = %v, %v, want %v", r, err, want)
	}
	entry := journal(t, c, id, ended.GetSeqCursor()+1, 1)[0]
	p := payload(t, entry)
	if entry.GetKind() != "run" || entry.GetSubject() != "/tape/run//_/_/_/"+id || len(p) != 5 || p["run_id"] != id ||
		p["decisions_zeroed"] != 1.0 || p["effects_zeroed"] != 1.0 || p["bytes_saved"] != 9.0 || p["compacted_at_ms"].(float64) < float64(end+1000) {
		t.Errorf("entry = %v, want the compaction", entry)
	}
	if got := list(end + 60_000); len(got) != 0 {
		t.Errorf("compactable after the compaction: %v, want nothing", got)
	}
	if again := begin(t, c, "i"); !again.GetResumed() || again.GetStatus() != tapepb.RunStatus_RUN_STATUS_TERMINAL {
		t.Errorf("BeginRun = %v, want the TERMINAL run", again)
	}

	doubtful := beginWithBodies(t, c, "unknown", unknown)
	endRun(t, c, doubtful)
	_, err = c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: doubtful})
	wantStatus(t, "CompactRun with an UNKNOWN effect", err, codes.Internal, "tape store: compact_run: run "+doubtful+" has 1 UNKNOWN effect(s); not settled")
	open := beginWithBodies(t, c, "obligation", confirmed)
	endRun(t, c, open)
	b := runstore.NewBatch(runstore.RunID(open), runstore.Unguarded("a test"))
	b.Put("obligation/x", []byte("{\"v\":1,\"b\":[0,0],\"h\":{\"status\":2}}\n"))
	if _, err := handle.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	_, err = c.CompactRun(t.Context(), &tapepb.CompactRunRequest{RunId: open})
	wantStatus(t, "CompactRun with an open obligation", err, codes.Internal, "tape store: compact_run: run "+open+" has 1 open obligation(s); not settled")
}
