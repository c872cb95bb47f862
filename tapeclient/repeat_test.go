package tapeclient_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A write whose reply is lost is not repeated if the repeat would undo what others have done since.
func TestWritesThatARepeatWouldApplyAgain(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, tape tapepb.TapeClient, id string) error{
		"SendSignal": func(ctx context.Context, tape tapepb.TapeClient, id string) error {
			_, err := tape.SendSignal(ctx, &tapepb.SendSignalRequest{RunId: id, GateName: "g"})
			return err
		},
		"SetTimer": func(ctx context.Context, tape tapepb.TapeClient, id string) error {
			_, err := tape.SetTimer(ctx, &tapepb.SetTimerRequest{RunId: id, TimerId: "t"})
			return err
		},
		"CancelTimer": func(ctx context.Context, tape tapepb.TapeClient, id string) error {
			_, err := tape.CancelTimer(ctx, &tapepb.CancelTimerRequest{RunId: id, TimerId: "t"})
			return err
		},
		"SetBudget": func(ctx context.Context, tape tapepb.TapeClient, id string) error {
			_, err := tape.SetBudget(ctx, &tapepb.SetBudgetRequest{RunId: id, TokenCap: 1})
			return err
		},
		"DeleteSession": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.DeleteSession(ctx, &tapepb.DeleteSessionRequest{AppName: "a", UserId: "u", SessionId: "s"})
			return err
		},
		"CreateSession": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.CreateSession(ctx, &tapepb.CreateSessionRequest{AppName: "a", UserId: "u", SessionId: "s", StateJson: "{}"})
			return err
		},
		"CreateSession without an id": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.CreateSession(ctx, &tapepb.CreateSessionRequest{AppName: "a", UserId: "u"})
			return err
		},
		"AppendEvent": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.AppendEvent(ctx, &tapepb.AppendEventRequest{AppName: "a", UserId: "u", SessionId: "s", Event: &tapepb.EventRecord{Id: "1"}})
			return err
		},
		"WriteValue at any version": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.WriteValue(ctx, &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: "1", IfVersion: -1})
			return err
		},
		"DeleteValue": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.DeleteValue(ctx, &tapepb.DeleteValueRequest{Namespace: "n", Key: "k"})
			return err
		},
		"RegisterReaction": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.RegisterReaction(ctx, &tapepb.Reaction{SubjectPattern: "a", NumShards: 1})
			return err
		},
		"DeregisterReaction": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.DeregisterReaction(ctx, &tapepb.DeregisterReactionRequest{ReactionId: "r"})
			if runstore.OutcomeOf(err) == runstore.NotApplied {
				return nil // there is no such reaction, which is an answer
			}
			return err
		},
		"NackTask": func(ctx context.Context, tape tapepb.TapeClient, _ string) error {
			_, err := tape.NackTask(ctx, &tapepb.NackTaskRequest{TaskId: "t", Owner: "w"})
			if runstore.OutcomeOf(err) == runstore.NotApplied {
				return nil // there is no such task, which is an answer
			}
			return err
		},
		"RecordDispatchAttempt without a generation": func(ctx context.Context, tape tapepb.TapeClient, id string) error {
			err := beginOutbox(ctx, tape, id)
			if err == nil {
				_, err = tape.RecordDispatchAttempt(ctx, &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "e"})
			}
			return err
		},
		"RecordExternalObservation of UNSPECIFIED": observing(tapepb.EffectResolution_EFFECT_RESOLUTION_UNSPECIFIED),
		"RecordExternalObservation of ABSENT":      observing(tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT),
		"RecordExternalObservation of STUCK":       observing(tapepb.EffectResolution_EFFECT_RESOLUTION_STUCK),
		"ReconcileEffect to PENDING":               reconciling(pending),
		"ReconcileEffect to UNKNOWN":               reconciling(unknown),
	} {
		t.Run(name, func(t *testing.T) {
			method, _, _ := strings.Cut(name, " ")
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, tapeserver.Options{})
				c, net := f.client("driver:1")
				begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
					if err := call(ctx, run.Tape(), run.ID()); err != nil {
						t.Errorf("without a fault: %v", err)
					}
					net.once(method, replyLost)
					err := call(ctx, run.Tape(), run.ID())
					if runstore.OutcomeOf(err) != runstore.Unknown || net.count(method) != 1 {
						t.Errorf("%v in %d calls, want an unknown outcome and 1 call", err, net.count(method))
					}
					return nil
				})
			})
		})
	}
}

// beginOutbox records an effect that a dispatcher is to make.
func beginOutbox(ctx context.Context, tape tapepb.TapeClient, id string) error {
	req := pay()
	req.RunId, req.CustomKey, req.Connector, req.DispatchMode = id, "e", "bank", tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX
	_, err := tape.BeginEffect(ctx, req)
	return err
}

// observing returns a call that records an observation of an effect for a dispatcher.
func observing(resolution tapepb.EffectResolution) func(ctx context.Context, tape tapepb.TapeClient, id string) error {
	return func(ctx context.Context, tape tapepb.TapeClient, id string) error {
		err := beginOutbox(ctx, tape, id)
		if err == nil {
			_, err = tape.RecordExternalObservation(ctx, &tapepb.RecordExternalObservationRequest{RunId: id, IdempotencyKey: "e", Resolution: resolution})
		}
		return err
	}
}

// reconciling returns a call that reconciles an effect for a dispatcher.
func reconciling(status tapepb.EffectStatus) func(ctx context.Context, tape tapepb.TapeClient, id string) error {
	return func(ctx context.Context, tape tapepb.TapeClient, id string) error {
		err := beginOutbox(ctx, tape, id)
		if err == nil {
			_, err = tape.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "e", ResolvedStatus: status})
		}
		return err
	}
}

// A write that the server refuses or ignores if it was applied before is repeated.
func TestWritesThatAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, tapeserver.Options{})
		c, net := f.client("driver:1")
		net.once("WriteValue", notSent)
		v, err := c.Tape().WriteValue(t.Context(), &tapepb.WriteValueRequest{Namespace: "n", Key: "k", ValueJson: "1"})
		if err != nil || v.GetVersion() != 1 || net.count("WriteValue") != 2 {
			t.Errorf("WriteValue at a version = %v, %v in %d calls, want version 1 in 2", v, err, net.count("WriteValue"))
		}
		id := outbox(t, c, 2, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
		net.once("ReconcileEffect", replyLost)
		e, err := c.Tape().ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "0", ResolvedStatus: failed})
		if err != nil || e.GetStatus() != failed || net.count("ReconcileEffect") != 2 {
			t.Errorf("ReconcileEffect to FAILED = %v, %v in %d calls, want it FAILED in 2", e, err, net.count("ReconcileEffect"))
		}
		net.once("RecordExternalObservation", replyLost)
		e, err = c.Tape().RecordExternalObservation(t.Context(), &tapepb.RecordExternalObservationRequest{
			RunId: id, IdempotencyKey: "1", Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED,
		})
		if err != nil || e.GetStatus() != confirmed || net.count("RecordExternalObservation") != 2 {
			t.Errorf("RecordExternalObservation of CONFIRMED = %v, %v in %d calls, want it CONFIRMED in 2", e, err, net.count("RecordExternalObservation"))
		}
		net.once("NackTask", notSent)
		_, err = c.Tape().NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: "t", Owner: "w", Permanent: true})
		if err == nil || net.count("NackTask") != 2 { // there is no such task
			t.Errorf("a permanent NackTask = %v in %d calls, want an error in 2", err, net.count("NackTask"))
		}
	})
}
