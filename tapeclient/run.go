package tapeclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Decide returns the run's decision with that index: the recorded one, or the result of think once
// it is recorded. The first record of an index wins, so every later driver reads what this call
// returns. The fields run_id and decision_index of think's result are filled in.
//
// Errors: the error of think; an [*Error] of GetDecision or RecordDecision.
func (r *Run) Decide(ctx context.Context, index int64, think func(ctx context.Context) (*tapepb.RecordDecisionRequest, error)) (*tapepb.DecisionRecord, error) {
	known, err := r.tape.GetDecision(ctx, &tapepb.GetDecisionRequest{RunId: r.ID(), DecisionIndex: index})
	if err != nil {
		return nil, err
	}
	if known.GetFound() {
		return known.GetDecision(), nil
	}
	thought, err := think(ctx)
	if err != nil {
		return nil, err
	}
	thought = proto.CloneOf(thought)
	thought.RunId, thought.DecisionIndex = r.ID(), index
	return r.tape.RecordDecision(ctx, thought)
}

// Effect is the result of Act.
type Effect struct {
	// Key is the effect's idempotency key.
	Key string
	// Status is CONFIRMED or FAILED, or PENDING for an effect that a dispatcher has to call.
	Status tapepb.EffectStatus
	// Response and Error are the recorded outcome, as JSON.
	Response, Error string
	// Replayed reports that the outcome was recorded already, so that Act did not call the
	// counterparty.
	Replayed bool
}

// Call calls a counterparty under an effect's idempotency key and returns its response as JSON. It
// must pass the key on: after a crash the call is repeated under the same key. Its error leaves
// open whether the counterparty has acted, unless it matches [ErrPermanent] or [ErrNotSent].
type Call func(ctx context.Context, idempotencyKey string) (response string, err error)

// Act carries out an effect. It records the intent with BeginEffect, calls the counterparty if no
// outcome is recorded, and records the outcome. The field run_id of the request is filled in.
//
//   - call runs only while the lease is trusted, right after that was checked, and never if
//     BeginEffect has failed or was refused ([ErrDenied]).
//   - An error of call that matches [ErrPermanent] is recorded as FAILED, and Act returns the
//     effect. After any other error the effect stays PENDING, and Act returns the error: the next
//     driver calls again under the same key.
//   - An effect that is recorded as an outbox effect is not called, whatever the request says.
//   - An effect of another run, which a business key may return, is not called either: that run's
//     driver calls it.
//   - Of several outcomes the first recorded one wins, and Act returns it: the status may differ
//     from what call returned.
//
// Errors: the error of call; [ErrUnsettled] for an effect that is UNKNOWN, or PENDING in another
// run; the cause of ctx if the lease was lost; an [*Error] of BeginEffect, GetEffect (for a server
// that does not return an effect's run) or CompleteEffect. After an error of CompleteEffect the
// counterparty has acted.
func (r *Run) Act(ctx context.Context, req *tapepb.BeginEffectRequest, call Call) (Effect, error) {
	req = proto.CloneOf(req)
	req.RunId = r.ID()
	begun, err := r.tape.BeginEffect(ctx, req)
	if err != nil {
		return Effect{}, err
	}
	effect := Effect{
		Key: begun.GetIdempotencyKey(), Status: begun.GetStatus(),
		Response: begun.GetResponseJson(), Error: begun.GetErrorJson(), Replayed: true,
	}
	switch effect.Status {
	case tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, tapepb.EffectStatus_EFFECT_STATUS_FAILED:
		return effect, nil
	case tapepb.EffectStatus_EFFECT_STATUS_PENDING:
	default:
		return effect, fmt.Errorf("effect %q: %w", effect.Key, ErrUnsettled)
	}
	effect.Replayed = false
	mode, own, err := r.recorded(ctx, req, begun)
	switch {
	case err != nil:
		return effect, err
	case mode == tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX:
		return effect, nil
	case !own:
		return effect, fmt.Errorf("effect %q is another run's: %w", effect.Key, ErrUnsettled)
	}
	if err := r.trust(ctx); err != nil {
		return effect, err
	}
	outcome := &tapepb.CompleteEffectRequest{RunId: r.ID(), IdempotencyKey: effect.Key}
	if err := carryOut(ctx, outcome, effect.Key, call); err != nil {
		return effect, err
	}
	done, err := r.tape.CompleteEffect(ctx, outcome)
	if err != nil {
		return effect, err
	}
	effect.Status, effect.Response, effect.Error = done.GetStatus(), done.GetResponseJson(), done.GetErrorJson()
	if effect.Status != tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED && effect.Status != tapepb.EffectStatus_EFFECT_STATUS_FAILED {
		return effect, fmt.Errorf("effect %q: %w", effect.Key, ErrUnsettled)
	}
	return effect, nil
}

// recorded returns the recorded dispatch mode of an effect, and whether the effect is this run's.
// Both may differ from the request, because a business key may return the effect of another run. If
// the server returns neither, recorded reads this run's effect of that key; the mode of another
// run's effect is then unspecified.
func (r *Run) recorded(ctx context.Context, req *tapepb.BeginEffectRequest, begun *tapepb.BeginEffectResponse) (mode tapepb.EffectDispatchMode, own bool, err error) {
	if begun.GetRunId() != "" {
		return begun.GetDispatchMode(), begun.GetRunId() == r.ID(), nil
	}
	known, err := r.tape.GetEffect(ctx, &tapepb.GetEffectRequest{RunId: r.ID(), IdempotencyKey: begun.GetIdempotencyKey()})
	if err != nil {
		return 0, false, err
	}
	e := known.GetEffect()
	// This run may have an effect with the same key besides the other run's.
	if !known.GetFound() || e.GetSeq() != begun.GetSeq() || req.GetBusinessKey() != "" && e.GetBusinessKey() != req.GetBusinessKey() {
		return 0, false, nil
	}
	return e.GetDispatchMode(), true, nil
}

// carryOut calls the counterparty and fills in the outcome. It returns an error if the outcome is
// open or the call was not made.
func carryOut(ctx context.Context, outcome *tapepb.CompleteEffectRequest, key string, call Call) error {
	response, err := call(ctx, key)
	switch {
	case err == nil:
		outcome.Status, outcome.ResponseJson = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, response
	case errors.Is(err, ErrPermanent):
		outcome.Status, outcome.ErrorJson = tapepb.EffectStatus_EFFECT_STATUS_FAILED, errorJSON(err)
	default:
		return err
	}
	return nil
}

// errorJSON returns an error as JSON, of a size that every server stores.
func errorJSON(err error) string {
	text, _ := json.Marshal(map[string]string{"error": failure(err)}) // a map of strings always encodes
	return string(text)
}

// trustPoll is how often a driver that waits for a renewal checks for it: often enough that a call
// is delayed little longer than the renewal's round trip.
const trustPoll = 10 * time.Millisecond

// trust returns once the lease can be trusted, or with the cause of the end of ctx or of the work's
// context. If the machine was suspended and its clocks disagree, it waits for the renewal that
// decides.
func (r *Run) trust(ctx context.Context) error {
	poll := time.NewTicker(trustPoll)
	defer poll.Stop()
	for {
		if _, ok := r.held.Trusted(); ok && ctx.Err() == nil && r.work.Err() == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.work.Done():
			return context.Cause(r.work)
		case <-poll.C:
		}
	}
}

// Await returns the signal at a gate, or parks the run there: its lease then ends, the error
// matches [ErrParked], and the work must return. A recovery loop continues the run after
// SendSignal. The server refuses to park a run that is COMPENSATING: its driver unwinds the run and does not
// wait for a signal.
//
// Errors: [ErrParked]; an [*Error] of AwaitSignal.
func (r *Run) Await(ctx context.Context, gate, payload string) (resolution string, err error) {
	answer, err := r.tape.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: r.ID(), GateName: gate, PayloadJson: payload})
	switch {
	case err != nil:
		return "", err
	case !answer.GetDelivered():
		return "", fmt.Errorf("gate %q: %w", gate, ErrParked)
	}
	return answer.GetResolutionJson(), nil
}

// End ends the run, and its lease, with a status and a detail as JSON. After
// RUN_STATUS_COMPENSATING the lease stays: the driver unwinds the run and calls End once more.
//
// Errors: an [*Error] of EndRun.
func (r *Run) End(ctx context.Context, status tapepb.RunStatus, detail string) error {
	_, err := r.tape.EndRun(ctx, &tapepb.EndRunRequest{RunId: r.ID(), Status: status, DetailJson: detail})
	return err
}
