package tapeclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The pauses between the attempts of a call grow from firstPause, about two round trips to a server
// in another zone, to maxPause, well below the TTL of a lease.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// invoker is a connection that repeats calls after lost replies and, for a driver, adds the fence
// of its run.
type invoker struct {
	client *Client
	run    *Run // nil unless this is a driver's connection
}

// claimInvoker is a connection for calls that claim work. The end of a call's context prevents further
// attempts and does not cancel the attempt in flight: without the reply the claimed work could not be
// given back.
type claimInvoker struct{ invoker }

// Invoke makes a call, with repeats.
func (v *claimInvoker) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	req := args.(proto.Message)
	if ctx.Err() != nil {
		return notSent(ctx, method, req)
	}
	untilEnd := func(_ context.Context, d time.Duration, _ bool) bool { return pace.Pause(ctx, d) }
	return v.client.retryCall(context.WithoutCancel(ctx), method, req, reply.(proto.Message), !unrepeatable(req), untilEnd, opts...)
}

// NewStream opens a stream, which is not repeated.
func (v *invoker) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return v.client.cc.NewStream(ctx, desc, method, opts...)
}

// Invoke makes a call, with repeats.
func (v *invoker) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	req := args.(proto.Message)
	if v.run == nil {
		return v.client.retryCall(ctx, method, req, reply.(proto.Message), !unrepeatable(req), sleeping, opts...)
	}
	return v.run.invoke(ctx, method, v.run.fenced(req), reply.(proto.Message), opts...)
}

// retryCall repeats a call as repeatCall does, and gives up once Options.RetryTimeout has passed.
func (c *Client) retryCall(ctx context.Context, method string, req, reply proto.Message, repeatable bool, wait waiter, opts ...grpc.CallOption) error {
	deadline := time.Now().Add(c.opts.RetryTimeout)
	return c.repeatCall(ctx, method, req, reply, repeatable, func(ctx context.Context, d time.Duration, ambiguous bool) bool {
		return time.Until(deadline) >= d && wait(ctx, d, ambiguous)
	}, opts...)
}

// repeatCall repeats a call until the outcome is known, the error is final, or ctx has ended. Between
// attempts it waits with wait, which may end the repeats. After an attempt with an unknown outcome it
// repeats only if the request is repeatable, and a refusal of the repeat says nothing about that
// attempt: the outcome of the call stays unknown.
func (c *Client) repeatCall(ctx context.Context, method string, req, reply proto.Message, repeatable bool, wait waiter, opts ...grpc.CallOption) error {
	ambiguous := false
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		proto.Reset(reply)
		err := c.attempt(ctx, method, req, reply, opts...)
		if err == nil {
			return nil
		}
		if ambiguous && errors.Is(err, runstore.ErrFenced) && c.endedBefore(ctx, req, reply) {
			return nil
		}
		unknown := runstore.OutcomeOf(err) == runstore.Unknown
		length := pause/2 + rand.N(pause)
		if again := errors.Is(err, runstore.ErrUnavailable) || unknown && repeatable && !final(err); !again || ctx.Err() != nil ||
			!wait(ctx, length, ambiguous || unknown) {
			if ambiguous && !unknown {
				err = &Error{OpError: &runstore.OpError{
					Op: path.Base(method), Run: runOf(req), Err: runstore.ErrUnknownOutcome, Cause: err,
				}}
			}
			return err
		}
		ambiguous = ambiguous || unknown
	}
}

// waiter waits between two attempts. It reports false if ctx ended first, or if no attempt is to
// follow. ambiguous reports that the outcome of an attempt is unknown.
type waiter func(ctx context.Context, d time.Duration, ambiguous bool) bool

// sleeping is a waiter that only sleeps.
func sleeping(ctx context.Context, d time.Duration, _ bool) bool { return pace.Pause(ctx, d) }

// unrepeatable reports whether a repeat of an applied request would be applied again: the request
// has no identity, or it would overwrite what others have written since.
func unrepeatable(req proto.Message) bool {
	switch r := req.(type) {
	case *tapepb.ChargeBudgetRequest, *tapepb.AppendEventRequest, *tapepb.SendSignalRequest, *tapepb.SetTimerRequest,
		*tapepb.CancelTimerRequest, *tapepb.SetBudgetRequest, *tapepb.CreateSessionRequest, *tapepb.DeleteSessionRequest,
		*tapepb.DeleteValueRequest, *tapepb.Reaction, *tapepb.DeregisterReactionRequest:
		return true
	case *tapepb.ListDueTimersRequest:
		return r.GetClaim()
	// Unless it settles the effect, a repeat would make the effect due again, or end a claim, after a dispatch
	// that was made since.
	case *tapepb.ReconcileEffectRequest:
		switch r.GetResolvedStatus() {
		case tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED, tapepb.EffectStatus_EFFECT_STATUS_FAILED:
			return false
		}
		return true
	case *tapepb.RecordExternalObservationRequest:
		switch r.GetResolution() {
		case tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED, tapepb.EffectResolution_EFFECT_RESOLUTION_FAILED,
			tapepb.EffectResolution_EFFECT_RESOLUTION_DUPLICATE:
			return false
		}
		return true
	case *tapepb.EndRunRequest:
		return r.GetFence() == nil
	case *tapepb.AwaitSignalRequest:
		return r.GetFence() == nil
	case *tapepb.WriteValueRequest: // at a version, a repeat is refused
		return r.GetIfVersion() < 0
	case *tapepb.NackTaskRequest: // a repeat would end a later claim by the same owner, unless there can be none
		return !r.GetPermanent()
	case *tapepb.RecordDispatchAttemptRequest:
		return r.GetClaimGeneration() == 0
	case *tapepb.RecordObligationAttemptRequest:
		return r.GetClaimGeneration() == 0
	default:
		return false
	}
}

// endedBefore reports whether a request that ends its own grant was applied although its repeat is
// refused as fenced: the grant is the run's last one, and the run is in the state that the request
// leaves. It then fills in the reply.
func (c *Client) endedBefore(ctx context.Context, req, reply proto.Message) bool {
	end, isEnd := req.(*tapepb.EndRunRequest)
	wait, isWait := req.(*tapepb.AwaitSignalRequest)
	if !isEnd && !isWait {
		return false
	}
	run, err := c.tape.GetRun(ctx, &tapepb.GetRunRequest{RunId: string(runOf(req))})
	if err != nil || run.GetLeaseOwner() != "" {
		return false
	}
	if isEnd {
		if run.GetToken() != end.GetFence().GetToken() || run.GetStatus() != end.GetStatus() {
			return false
		}
		reply.(*tapepb.EndRunResponse).Run = run
		return true
	}
	parked := run.GetStatus() == tapepb.RunStatus_RUN_STATUS_WAITING && run.GetWaitingOnGate() == wait.GetGateName()
	released := run.GetStatus() == tapepb.RunStatus_RUN_STATUS_RUNNABLE // a signal has arrived since
	return run.GetToken() == wait.GetFence().GetToken() && (parked || released)
}

// fenced returns a request with the run's fence, if the request writes to the run or to a session
// and presents none.
func (r *Run) fenced(req proto.Message) proto.Message {
	m := req.ProtoReflect()
	fence := m.Descriptor().Fields().ByName("fence")
	if fence == nil || runOf(req) != r.lease.Run && !toSession(req) || m.Has(fence) {
		return req
	}
	clone := proto.Clone(req) // do not change the caller's request
	clone.ProtoReflect().Set(fence, protoreflect.ValueOfMessage(r.fence().ProtoReflect()))
	return clone
}

// toSession reports whether a request writes to a session, which is not part of a run.
func toSession(req proto.Message) bool {
	switch req.(type) {
	case *tapepb.CreateSessionRequest, *tapepb.AppendEventRequest, *tapepb.DeleteSessionRequest:
		return true
	default:
		return false
	}
}
