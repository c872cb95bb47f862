package protocol

import (
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func gateCases() []Case {
	return []Case{
		{Group: "gates", Check: 51, Name: "early-signal-is-kept", Run: earlySignal,
			Doc: "AwaitSignal always finds a signal that arrived before the run waits."},
		{Group: "gates", Check: 52, Name: "signal-releases-its-gate", Run: signalReleases,
			Doc: "A waiting run is released by a signal at its gate, and by no other signal."},
		{Group: "gates", Check: 53, Name: "signal-of-a-session", Run: signalOfSession,
			Doc: "A signal without a run goes to the newest run of its session; for a session without runs it is refused."},
	}
}

func (p *Process) await(t T, run, gate string) *tapepb.AwaitSignalResponse {
	t.Helper()
	r, _ := p.Client.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: run, GateName: gate, PayloadJson: "{}"})
	return r
}

func (p *Process) signal(t T, run, gate, resolution string) *tapepb.SendSignalResponse {
	t.Helper()
	r, _ := p.Client.SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: run, GateName: gate, ResolutionJson: resolution})
	expect(t, r.GetAccepted() && r.GetRunId() == run, "SendSignal = %v, want it accepted for run %s", r, run)
	return r
}

func earlySignal(t T, e *Env) {
	id := e.begin(t)
	r := e.NewProcess(t).signal(t, id, "g", `{"ok":true}`)
	expect(t, r.GetRunStatus() == 0, "SendSignal to a run that does not wait = %v", r)
	for range 2 {
		got := e.await(t, id, "g")
		expect(t, got.GetDelivered() && got.GetResolutionJson() == `{"ok":true}`, "AwaitSignal = %v, want the signal", got)
	}
	expect(t, e.run(t, id).GetStatus() == running, "the run is %v, want it RUNNING", e.run(t, id))
}

func signalReleases(t T, e *Env) {
	id := e.begin(t)
	got := e.await(t, id, "g")
	run := e.run(t, id)
	expect(t, !got.GetDelivered() && got.GetResolutionJson() == "" && run.GetStatus() == waiting && run.GetWaitingOnGate() == "g" && run.GetLeaseOwner() == "",
		"AwaitSignal = %v, and the run is %v; want it WAITING on g without an owner", got, run)
	expect(t, e.listed(t, id, run.GetLeaseExpiresAtMs()+1000) == nil, "a run that waits is listed for recovery")
	other := e.NewProcess(t)
	r := other.signal(t, id, "another", "1")
	expect(t, r.GetRunStatus() == 0 && e.run(t, id).GetStatus() == waiting, "a signal at another gate = %v, and the run is %v", r, e.run(t, id))
	r = other.signal(t, id, "g", "2")
	run = e.run(t, id)
	expect(t, r.GetRunStatus() == runnable && run.GetStatus() == runnable && run.GetWaitingOnGate() == "", "the signal = %v, and the run is %v; want it RUNNABLE", r, run)
	expect(t, e.listed(t, id, 0).GetStatus() == runnable, "the released run is not listed for recovery")
	e.Begin(t, e.Process, "i")
	got = e.await(t, id, "g")
	expect(t, got.GetDelivered() && got.GetResolutionJson() == "2", "AwaitSignal = %v, want the signal", got)
	expect(t, e.run(t, id).GetStatus() == running, "the run is %v, want it RUNNING", e.run(t, id))
}

func signalOfSession(t T, e *Env) {
	e.begin(t)
	first := e.run(t, e.begin(t)).GetStartedAtMs()
	var newest string
	for i := 0; ; i++ { // two runs of the same millisecond have no defined order
		require(t, i < 10_000, "10000 runs have begun in one millisecond")
		newest = e.Begin(t, e.Process, string(rune('A'+i))).GetRunId()
		if e.run(t, newest).GetStartedAtMs() > first {
			break
		}
	}
	req := &tapepb.SendSignalRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "s", GateName: "g", ResolutionJson: "1"}
	r, _ := e.Client.SendSignal(t.Context(), req)
	expect(t, r.GetAccepted() && r.GetRunId() == newest, "SendSignal = %v, want run %s", r, newest)
	expect(t, e.await(t, newest, "g").GetDelivered(), "the newest run has no signal")
	req.SessionId = "none"
	_, err := e.Try.SendSignal(t.Context(), req)
	expectStatus(t, "SendSignal to a session without a run", err, codes.Internal, "no run for that session")
}
