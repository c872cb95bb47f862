package tapeserver_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestGates(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	await := func(gate string) *tapepb.AwaitSignalResponse {
		t.Helper()
		r, err := c.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: gate, PayloadJson: `{"why":1}`})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	send := func(req *tapepb.SendSignalRequest, want tapepb.RunStatus) {
		t.Helper()
		r, err := c.SendSignal(t.Context(), req)
		if err != nil || !r.GetAccepted() || r.GetRunId() != id || r.GetRunStatus() != want {
			t.Errorf("SendSignal = %v, %v, want it accepted for %s with status %v", r, err, id, want)
		}
	}
	recoverable := func() bool {
		t.Helper()
		r, err := c.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(r.GetRuns()) == 1 && r.GetRuns()[0].GetRunId() == id
	}
	// 51
	send(&tapepb.SendSignalRequest{RunId: id, GateName: "early", ResolutionJson: `{"ok":true}`}, 0)
	for range 2 {
		if r := await("early"); !r.GetDelivered() || r.GetResolutionJson() != `{"ok":true}` {
			t.Errorf("AwaitSignal = %v, want the signal that was sent before", r)
		}
	}
	// 52
	if r := await("gate"); r.GetDelivered() || r.GetResolutionJson() != "" {
		t.Errorf("AwaitSignal = %v, want nothing delivered", r)
	}
	run := getRun(t, c, id)
	if run.GetStatus() != tapepb.RunStatus_RUN_STATUS_WAITING || run.GetWaitingOnGate() != "gate" || run.GetLeaseOwner() != "" {
		t.Errorf("parked: %v, want it WAITING on the gate, held by nobody", run)
	}
	send(&tapepb.SendSignalRequest{RunId: id, GateName: "another"}, 0)
	if s := getRun(t, c, id).GetStatus(); s != tapepb.RunStatus_RUN_STATUS_WAITING {
		t.Errorf("after a signal at another gate: %v", s)
	}
	// 53
	send(&tapepb.SendSignalRequest{
		AppName: run.GetAppName(), UserId: run.GetUserId(), SessionId: run.GetSessionId(), GateName: "gate", ResolutionJson: `1`,
	}, tapepb.RunStatus_RUN_STATUS_RUNNABLE)
	if run := getRun(t, c, id); run.GetStatus() != tapepb.RunStatus_RUN_STATUS_RUNNABLE || run.GetWaitingOnGate() != "" || !recoverable() {
		t.Errorf("released: %v, want it RUNNABLE and listed for recovery", run)
	}
	if r := await("gate"); !r.GetDelivered() || r.GetResolutionJson() != `1` {
		t.Errorf("AwaitSignal = %v, want the resolution", r)
	}
	_, err := c.SendSignal(t.Context(), &tapepb.SendSignalRequest{AppName: "none", GateName: "gate"})
	wantStatus(t, "SendSignal", err, codes.Internal, "no run for that session")
	kinds := map[string]int{}
	for _, e := range journal(t, c, id, 0, 3) {
		kinds[e.GetKind()]++
	}
	if kinds["gate"] != 2 {
		t.Errorf("journal: %v, want two entries of gates", kinds)
	}
}
