package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// write is one kind of write that a driver has.
type write struct {
	call string
	do   func(context.Context, *worker) error
}

// forged is what the fenced worker would have the journal say.
const forged = `{"forged":true}`

// writes are all writes that a driver has: those to the effect that worker-2 was
// about to act on, a decision and an effect that nobody else has made, the end of
// the run, and both ways to a longer lease.
var writes = []write{
	{"CompleteEffect", func(ctx context.Context, w *worker) error {
		_, err := w.tape.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
			RunId: w.hold.run, IdempotencyKey: w.pausedKey, ResponseJson: forged,
			Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, Fence: w.hold.fence,
		})
		return err
	}},
	{"ReconcileEffect", func(ctx context.Context, w *worker) error {
		_, err := w.tape.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{
			RunId: w.hold.run, IdempotencyKey: w.pausedKey, ResponseJson: forged,
			ResolvedStatus: tapepb.EffectStatus_EFFECT_STATUS_FAILED, Fence: w.hold.fence,
		})
		return err
	}},
	{"RecordDecision", func(ctx context.Context, w *worker) error {
		_, err := w.tape.RecordDecision(ctx, &tapepb.RecordDecisionRequest{
			RunId: w.hold.run, DecisionIndex: 99, Model: model, ResponseJson: forged, Fence: w.hold.fence,
		})
		return err
	}},
	{"BeginEffect", func(ctx context.Context, w *worker) error {
		_, err := w.tape.BeginEffect(ctx, &tapepb.BeginEffectRequest{
			RunId: w.hold.run, DecisionIndex: 99, ToolName: "wire_again", RequestJson: forged, Fence: w.hold.fence,
		})
		return err
	}},
	{"EndRun", func(ctx context.Context, w *worker) error {
		_, err := w.tape.EndRun(ctx, &tapepb.EndRunRequest{
			RunId: w.hold.run, Status: tapepb.RunStatus_RUN_STATUS_FAILED, DetailJson: forged, Fence: w.hold.fence,
		})
		return err
	}},
	{"ResumeRun", func(ctx context.Context, w *worker) error {
		_, err := w.tape.ResumeRun(ctx, &tapepb.ResumeRunRequest{
			RunId: w.hold.run, LeaseOwner: w.owner, LeaseTtlMs: w.ttl.Milliseconds(), Fence: w.hold.fence,
		})
		return err
	}},
	{"BeginRun", func(ctx context.Context, w *worker) error {
		_, err := w.tape.BeginRun(ctx, beginRequest(w.owner, w.ttl, w.hold.fence))
		return err
	}},
}

// insist tries every write under the old fence and reports what came of it.
func (w *worker) insist(ctx context.Context) {
	say("insists: tries every write that it has, under its old fence")
	for _, wr := range writes {
		a := attemptOf(wr.call, wr.do(ctx, w))
		outcome := "ACCEPTED"
		switch {
		case a.Refused:
			outcome = "refused: " + a.Reason
		case a.Reason != "":
			outcome = "failed: " + a.Reason
		}
		tell(report{Kind: tried, Attempt: &a, Text: fmt.Sprintf("  %-15s %s", wr.call, outcome)})
	}
}

// attemptOf judges the outcome of a write. Only the server's own words make a
// refusal; a call that was cut off may have been applied.
func attemptOf(call string, err error) attempt {
	a := attempt{Call: call}
	if err == nil {
		return a
	}
	a.Reason = err.Error()
	if info := refusal(err); info.GetReason() == "FENCED" {
		a.Refused, a.Reason = true, info.GetReason()
		a.Presented, a.Current = info.GetMetadata()["presented_token"], info.GetMetadata()["current_token"]
	}
	return a
}

// presented and current return the tokens that a refusal names.
func presented(err error) string { return fenceFact(err, "presented_token") }
func current(err error) string   { return fenceFact(err, "current_token") }

func fenceFact(err error, name string) string {
	var failed *wireError
	if !errors.As(err, &failed) {
		return ""
	}
	return refusal(failed.err).GetMetadata()[name]
}
