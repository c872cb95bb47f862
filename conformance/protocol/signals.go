package protocol

import (
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func signalCases() []Case {
	return []Case{
		{Group: "T4", Name: "look-and-signal-at-once", Run: lookAndSignal,
			Doc: "When AwaitSignal and SendSignal run concurrently, the run gets its signal, or it can be recovered and then finds the signal."},
		{Group: "T4", Name: "signal-at-another-gate", Run: signalAtAnotherGate,
			Doc: "A run that parks while a signal waits at another of its gates can be recovered."},
		{Group: "T4", Name: "ended-run-is-not-parked", Run: endedIsNotParked,
			Doc: "AwaitSignal does not park a run that has ended."},
		{Group: "T4", Name: "late-heartbeat-leaves-a-parked-run", Run: lateHeartbeat,
			Doc: "A heartbeat that arrives after AwaitSignal has parked the run leaves the run parked, so that its signal releases it."},
	}
}

func lookAndSignal(t T, e *Env) {
	id, other := e.begin(t), e.NewProcess(t)
	for round := range e.Rounds(40) {
		gate := fmt.Sprint(round)
		var found *tapepb.AwaitSignalResponse
		var lookErr, signalErr error
		together(2, func(i int) {
			if i == 0 {
				found, lookErr = e.Try.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: gate})
			} else {
				_, signalErr = other.Try.SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: id, GateName: gate, ResolutionJson: gate})
			}
		})
		require(t, lookErr == nil && signalErr == nil, "AwaitSignal: %v, SendSignal: %v", lookErr, signalErr)
		if !found.GetDelivered() {
			require(t, e.listed(t, id, 0) != nil, "round %d: the signal is in, the run is %v, and no list of runs to recover has it", round, e.run(t, id))
			e.Begin(t, e.Process, "i")
			found = e.await(t, id, gate)
		}
		require(t, found.GetDelivered() && found.GetResolutionJson() == gate, "round %d: AwaitSignal = %v, want the signal", round, found)
	}
}

func signalAtAnotherGate(t T, e *Env) {
	id := e.begin(t)
	e.signal(t, id, "first", "1")
	require(t, !e.await(t, id, "second").GetDelivered(), "a gate has the signal of another one")
	expect(t, e.listed(t, id, 0) != nil, "a run with a signal at another gate is not listed for recovery")
	e.Begin(t, e.Process, "i")
	expect(t, e.await(t, id, "first").GetDelivered(), "the first gate has no signal")
}

func endedIsNotParked(t T, e *Env) {
	id := e.begin(t)
	e.end(t, id, terminal)
	_, err := e.Bare.AwaitSignal(t.Context(), &tapepb.AwaitSignalRequest{RunId: id, GateName: "g"})
	expect(t, err != nil, "AwaitSignal of a run that has ended succeeds")
	expect(t, e.run(t, id).GetStatus() == terminal, "the run is %v, want it TERMINAL", e.run(t, id))
	_, err = e.Try.SendSignal(t.Context(), &tapepb.SendSignalRequest{RunId: id, GateName: "g"})
	expectStatus(t, "SendSignal to a run that has ended", err, codes.OK, "")
	expect(t, e.run(t, id).GetStatus() == terminal, "after a signal the run is %v, want it TERMINAL", e.run(t, id))
}

func lateHeartbeat(t T, e *Env) {
	id, other := e.begin(t), e.NewProcess(t)
	require(t, !e.await(t, id, "g").GetDelivered(), "a gate has a signal before one was sent")
	r, err := other.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1"})
	expect(t, err == nil && r.GetRun().GetStatus() == waiting && r.GetGrant() == nil, "the heartbeat is answered %v, %v; want the run WAITING and no grant", r, err)
	sent := other.signal(t, id, "g", "1")
	expect(t, sent.GetRunStatus() == runnable && e.listed(t, id, 0) != nil, "SendSignal = %v, and the run is %v; want it RUNNABLE and listed for recovery", sent, e.run(t, id))
	_, err = e.Bare.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1"})
	expect(t, err == nil && e.run(t, id).GetStatus() == running, "ResumeRun after the signal: %v, and the run is %v; want it RUNNING", err, e.run(t, id))
}
