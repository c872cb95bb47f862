package main

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// act has a step done, once: the intent is on file before the bank is called, and
// an outcome that is on file is not asked for again.
func (w *worker) act(ctx context.Context, decision int64, s step) error {
	request := encode(s)
	e, err := w.tape.BeginEffect(ctx, &tapepb.BeginEffectRequest{
		RunId: w.hold.run, DecisionIndex: decision, ToolName: s.Tool, RequestJson: request,
		Semantics: tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT, Fence: w.hold.fence,
	})
	if err != nil {
		return w.hold.refused("BeginEffect", err)
	}
	switch e.GetStatus() {
	case tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED:
		say("skips %s, which is confirmed", s.Tool)
		return nil
	case tapepb.EffectStatus_EFFECT_STATUS_PENDING:
		if e.GetSeq() <= w.known {
			say("finds %s pending: it may have happened, so it asks under the same key", s.Tool)
		} else {
			say("puts %s on file, pending", s.Tool)
		}
	default:
		return fmt.Errorf("effect %s is %v", e.GetIdempotencyKey(), e.GetStatus())
	}
	if err := w.pauseBefore(ctx, s.Tool, e.GetIdempotencyKey()); err != nil {
		return err
	}
	if err := w.hold.trust(ctx); err != nil {
		return err
	}
	reply, err := w.bank.operate(ctx, e.GetIdempotencyKey(), request)
	if err != nil {
		return callError("the bank", err)
	}
	if _, err := w.tape.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
		RunId: w.hold.run, IdempotencyKey: e.GetIdempotencyKey(), ResponseJson: encode(reply),
		Status: tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, Fence: w.hold.fence,
	}); err != nil {
		return w.hold.refused("CompleteEffect", err)
	}
	say("confirms %s: %s", s.Tool, reply.Reference)
	return nil
}

// pauseBefore waits to be told to go on, if the demo wants to stop the process here.
// The heartbeats go on meanwhile.
func (w *worker) pauseBefore(ctx context.Context, tool, key string) error {
	if tool != w.pause {
		return nil
	}
	w.pausedKey = key
	tell(report{Kind: waiting, Key: key})
	select {
	case <-w.stdin:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
