package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// write is a request of a writing RPC.
type write struct {
	// name is the name in tape.Authorities, such as EndRun(CANCELLED).
	name    string
	method  string
	request proto.Message
}

// service is the descriptor of Tape's service.
func service() protoreflect.ServiceDescriptor { return tapepb.File_tape_proto.Services().Get(0) }

// isRead reports whether the RPC of that name only reads. ListDueTimers counts as a read although
// it can fire timers: a timer is handed to one claimer, and belongs to no driver.
func isRead(method string) bool {
	for _, prefix := range []string{"Get", "List", "Subscribe", "Watch", "Admit"} {
		if strings.HasPrefix(method, prefix) {
			return true
		}
	}
	return false
}

// writes returns requests for every writing RPC of the service's descriptor, in an order in which
// they can be sent: those that end the run come last. An RPC that this function does not list gets
// a request that names the run, so that the cases also cover new RPCs.
func (z *prepared) writes() []write {
	id, e := z.run, z.e
	known := []write{
		{"RecordDecision", "", &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: 1}},
		{"RecordDecision", "", &tapepb.RecordDecisionRequest{RunId: id}}, // repeats decision 0
		{"BeginEffect", "", &tapepb.BeginEffectRequest{RunId: id, CustomKey: "new", Scope: "pay"}},
		{"BeginEffect", "", &tapepb.BeginEffectRequest{RunId: id, CustomKey: "open"}},
		{"RegisterCompensation", "", &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "new", Kind: "undo"}},
		{"RegisterCompensation", "", &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "open", Kind: "undo"}},
		{"ClaimEffectDispatch", "", &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "idle", Claimer: "Z"}},
		{"RecordDispatchAttempt", "", &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "idle", NextDispatchAtMs: 1}},
		{"RecordExternalObservation", "", &tapepb.RecordExternalObservationRequest{
			RunId: id, IdempotencyKey: "idle", Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_STUCK,
		}},
		{"CompleteEffect", "", &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "open", Status: failed}},
		{"CompleteEffect(OUTBOX)", "", &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "out", Status: failed, ClaimGeneration: z.claim}},
		{"ReconcileEffect", "", &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "idle", ResolvedStatus: failed}},
		{"ClaimObligation", "", &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: z.obligation, Claimer: "Z"}},
		{"RecordObligationAttempt", "", &tapepb.RecordObligationAttemptRequest{RunId: id, ObligationSeq: z.obligation, NextAttemptAtMs: 1}},
		{"ResolveObligation", "", &tapepb.ResolveObligationRequest{RunId: id, ObligationSeq: z.obligation, Status: compensated}},
		{"SetBudget", "", &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1}},
		{"ChargeBudget", "", &tapepb.ChargeBudgetRequest{RunId: id, Usd: 1}},
		{"SetTimer", "", &tapepb.SetTimerRequest{RunId: id, TimerId: "new", FireAtMs: z.due + 1}},
		{"CancelTimer", "", &tapepb.CancelTimerRequest{RunId: id, TimerId: "T"}},
		{"CancelTimer", "", &tapepb.CancelTimerRequest{RunId: id, TimerId: "none"}},
		{"SendSignal", "", &tapepb.SendSignalRequest{RunId: id, GateName: "g"}},
		{"CreateSession", "", &tapepb.CreateSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "z", StateJson: `{"z":1}`}},
		{"AppendEvent", "", e.appendRequest("z", "zombie", "{}")},
		{"DeleteSession", "", &tapepb.DeleteSessionRequest{AppName: e.Name("app"), UserId: "ana", SessionId: "z"}},
		{"WriteValue", "", &tapepb.WriteValueRequest{Namespace: e.Name("ns"), Key: "z", ValueJson: "1", IfVersion: -1}},
		{"WriteValue", "", &tapepb.WriteValueRequest{Namespace: e.Name("ns"), Key: "z", ValueJson: "2"}},
		{"DeleteValue", "", &tapepb.DeleteValueRequest{Namespace: e.Name("ns"), Key: "z"}},
		{"RegisterReaction", "", &tapepb.Reaction{ReactionId: e.Name("z"), SubjectPattern: e.Name("z")}},
		{"ClaimTasks", "", &tapepb.ClaimTasksRequest{ReactionId: e.Name("z"), Owner: "Z"}},
		{"CompleteTask", "", &tapepb.CompleteTaskRequest{TaskId: "none", Owner: "Z"}},
		{"NackTask", "", &tapepb.NackTaskRequest{TaskId: "none", Owner: "Z"}},
		{"DeregisterReaction", "", &tapepb.DeregisterReactionRequest{ReactionId: e.Name("z")}},
		{"AwaitSignal", "", &tapepb.AwaitSignalRequest{RunId: id, GateName: "empty"}},
		{"ResumeRun", "", &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 60_000}},
		{"BeginRun", "", e.request(z.invocation)},
		{"EndRun", "", &tapepb.EndRunRequest{RunId: id, Status: terminal}},
		{"EndRun(CANCELLED)", "", &tapepb.EndRunRequest{RunId: id, Status: cancelled}},
		{"CompactRun", "", &tapepb.CompactRunRequest{RunId: id}},
	}
	var all []write
	tried := map[string]bool{}
	for _, w := range known {
		w.method, _, _ = strings.Cut(w.name, "(")
		tried[w.method] = true
		all = append(all, w)
	}
	methods := service().Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		name := string(m.Name())
		if isRead(name) || tried[name] {
			continue
		}
		request := newMessage(m.Input())
		if field := m.Input().Fields().ByName("run_id"); field != nil {
			request.ProtoReflect().Set(field, protoreflect.ValueOfString(id))
		}
		all = append(all, write{name, name, request})
	}
	return all
}

// newMessage returns an empty message.
func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(fmt.Sprintf("protocol: the message %s of the service is not linked: %v", d.FullName(), err))
	}
	return m.New().Interface()
}

// authority returns the authority that the write requires.
func (w write) authority() tape.Authority {
	if a, ok := tape.Authorities()[w.name]; ok {
		return a
	}
	return tape.Anyone
}

// takesFence reports whether the request has a field for a fence.
func (w write) takesFence() bool {
	return w.request.ProtoReflect().Descriptor().Fields().ByName("fence") != nil
}

// setFence sets the fence of a request that takes one.
func (w write) setFence(f *tapepb.Fence) bool {
	field := w.request.ProtoReflect().Descriptor().Fields().ByName("fence")
	if field != nil {
		w.request.ProtoReflect().Set(field, protoreflect.ValueOfMessage(f.ProtoReflect()))
	}
	return field != nil
}

// mayFail reports whether an error of an admitted write results from the run's state, which earlier
// writes have changed.
func (w write) mayFail(err error) bool {
	message := status.Convert(err).Message()
	return w.method == "CompactRun" && (strings.Contains(message, "not terminal") || strings.Contains(message, "not settled")) ||
		w.method == "WriteValue" && strings.Contains(message, "version conflict") ||
		(w.method == "CompleteTask" || w.method == "NackTask") && strings.Contains(message, "no such task")
}

// invoke sends a write unchanged.
func (p *Process) invoke(ctx context.Context, w write) error {
	m := service().Methods().ByName(protoreflect.Name(w.method))
	return p.conn.Invoke(ctx, fmt.Sprintf("/%s/%s", service().FullName(), w.method), w.request, newMessage(m.Output()))
}

// headers returns a context whose calls present a grant in their headers.
func headers(ctx context.Context, g *tapepb.Grant) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"tape-fence-owner-bin", g.GetOwner(), "tape-fence-token", strconv.FormatInt(g.GetToken(), 10), "tape-fence-grant", g.GetGrantId(), "tape-fence-run-bin", g.GetRunId())
}
