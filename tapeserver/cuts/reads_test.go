package cuts_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// furnished prepares something for every read to find.
func furnished(e *env) {
	endedRun(e) // to compact
	claimedEffect(e)
	beginEffect(e, &tapepb.BeginEffectRequest{CustomKey: "due", DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX})
	must[*tapepb.ObligationRecord](e)(e.clean.RegisterCompensation(e.t.Context(), &tapepb.RegisterCompensationRequest{RunId: e.run, EffectKey: "k"}))
	must[proto.Message](e)(setTimer("t")(e, e.first(e.clean)))
	session(e)
	must[proto.Message](e)(appendEvent(e, e.first(e.clean)))
	valueAtOne(e)
	task(e)
}

// reads are the reading RPCs, and the reading cases of others.
var reads = []entry{
	{rpc: "GetRun", do: func(e *env, by caller) (proto.Message, error) {
		return by.GetRun(by, &tapepb.GetRunRequest{RunId: e.run})
	}},
	{rpc: "ListRunsToRecover", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListRunsToRecover(by, &tapepb.ListRunsToRecoverRequest{})
	}},
	{rpc: "SubscribeRun", what: "first page", do: func(e *env, by caller) (proto.Message, error) {
		ctx, cancel := context.WithCancel(by)
		defer cancel()
		stream, err := by.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: e.run})
		if err != nil {
			return nil, err
		}
		return stream.Recv()
	}},
	{rpc: "WatchValue", what: "first version", do: func(_ *env, by caller) (proto.Message, error) {
		ctx, cancel := context.WithCancel(by)
		defer cancel()
		stream, err := by.WatchValue(ctx, &tapepb.WatchValueRequest{Namespace: "n", Key: "k"})
		if err != nil {
			return nil, err
		}
		return stream.Recv()
	}},
	{rpc: "SubscribeEvents", what: "first page", do: feedPage(&tapepb.SubscribeEventsRequest{FromGlobalSeq: 1})},
	{rpc: "SubscribeEvents", what: "from a time", do: feedPage(&tapepb.SubscribeEventsRequest{FromTsMs: epoch.UnixMilli()})},
	{rpc: "SubscribeBySubject", what: "first page", do: func(_ *env, by caller) (proto.Message, error) {
		ctx, cancel := context.WithCancel(by)
		defer cancel()
		stream, err := by.SubscribeBySubject(ctx, &tapepb.SubscribeBySubjectRequest{PredicateCel: "kind == 'effect' && payload.status == 'pending'"})
		if err != nil {
			return nil, err
		}
		return stream.Recv()
	}},
	{rpc: "GetDecision", do: func(e *env, by caller) (proto.Message, error) {
		return by.GetDecision(by, &tapepb.GetDecisionRequest{RunId: e.run})
	}},
	{rpc: "GetEffect", do: func(e *env, by caller) (proto.Message, error) {
		return by.GetEffect(by, &tapepb.GetEffectRequest{RunId: e.run, IdempotencyKey: "k"})
	}},
	{rpc: "ListPendingEffects", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListPendingEffects(by, &tapepb.ListPendingEffectsRequest{IncludePending: true, IncludeUnknown: true})
	}},
	{rpc: "ListEffectsToDispatch", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListEffectsToDispatch(by, &tapepb.ListEffectsToDispatchRequest{})
	}},
	{rpc: "ListObligations", do: func(e *env, by caller) (proto.Message, error) {
		return by.ListObligations(by, &tapepb.ListObligationsRequest{RunId: e.run})
	}},
	{rpc: "ListUnresolvedObligations", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListUnresolvedObligations(by, &tapepb.ListUnresolvedObligationsRequest{
			IncludePending: true, IncludeStuck: true, IncludeCommittedExpired: true})
	}},
	{rpc: "AdmitBudget", do: func(e *env, by caller) (proto.Message, error) {
		return by.AdmitBudget(by, &tapepb.AdmitBudgetRequest{RunId: e.run, UsdEstimate: 1})
	}},
	{rpc: "ListDueTimers", what: "not claiming", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListDueTimers(by, &tapepb.ListDueTimersRequest{})
	}},
	{rpc: "ListCompactableRuns", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListCompactableRuns(by, &tapepb.ListCompactableRunsRequest{})
	}},
	{rpc: "GetSession", do: func(_ *env, by caller) (proto.Message, error) {
		return by.GetSession(by, &tapepb.GetSessionRequest{AppName: "a", UserId: "u", SessionId: "s"})
	}},
	{rpc: "GetValue", do: func(_ *env, by caller) (proto.Message, error) {
		return by.GetValue(by, &tapepb.GetValueRequest{Namespace: "n", Key: "k"})
	}},
	{rpc: "ListReactions", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListReactions(by, &tapepb.ListReactionsRequest{})
	}},
	{rpc: "ListTasks", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListTasks(by, &tapepb.ListTasksRequest{ReactionId: "r"})
	}},
	{rpc: "ListTasks", what: "PENDING", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListTasks(by, &tapepb.ListTasksRequest{ReactionId: "r", Status: tapepb.TaskStatus_TASK_STATUS_PENDING})
	}},
	{rpc: "ListSessions", do: func(_ *env, by caller) (proto.Message, error) {
		return by.ListSessions(by, &tapepb.ListSessionsRequest{AppName: "a", UserId: "u"})
	}},
}

// feedPage receives the first entry of a subscription.
func feedPage(req *tapepb.SubscribeEventsRequest) func(*env, caller) (proto.Message, error) {
	return func(_ *env, by caller) (proto.Message, error) {
		ctx, cancel := context.WithCancel(by)
		defer cancel()
		stream, err := by.SubscribeEvents(ctx, req)
		if err != nil {
			return nil, err
		}
		return stream.Recv()
	}
}

// A read that is interrupted at a store call fails and changes nothing. The next one answers what an
// uninterrupted one does.
func TestReads(t *testing.T) {
	t.Parallel()
	for _, r := range reads {
		r.setup = furnished
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			x := newExecutions(r, newEnv)
			if x.after(t, "R").content != x.after(t, "").content {
				t.Errorf("a read changes the store:\n%v", x.after(t, "R"))
			}
			calls := x.storeCalls(t)
			for n := 1; n <= len(calls); n++ {
				if !isRead(calls[n-1]) {
					t.Fatalf("the calls of a read are %v", calls)
				}
				for _, h := range []harm{killedBefore, killedAfter, lostReply, frozenAfter} {
					t.Run(fmt.Sprintf("%v call %d, %s", h, n, calls[n-1]), func(t *testing.T) { x.interruptRead(t, n, h) })
				}
			}
		})
	}
}

func (x *executions) interruptRead(t *testing.T, n int, h harm) {
	e := x.open(t, x.c)
	defer e.close()
	cut := newCutter(e.touched, h, n)
	c := tapepb.NewTapeClient(e.serve(cut))
	if h == frozenAfter {
		close(cut.resume) // the server is idle meanwhile: the call is late
	}
	m, err := x.c.do(e, e.first(c))
	if got := e.answer(m, err); h == frozenAfter {
		if got != x.after(t, "R").answer {
			t.Errorf("a late read is answered %s, want %s", got, x.after(t, "R").answer)
		}
	} else if !strings.HasPrefix(got, "Unavailable") {
		t.Errorf("an interrupted read is answered %s, want Unavailable", got)
	}
	if left := e.content(); left != x.after(t, "").content {
		t.Errorf("an interrupted read leaves\n%s\nwant\n%s", left, x.after(t, "").content)
	}
	if got, want := e.answer(x.c.do(e, e.first(e.clean))), x.after(t, "R").answer; got != want {
		t.Errorf("the next read is answered %s, want %s", got, want)
	}
}

// isServed reports whether a method is implemented. Its answer to an empty request does not matter.
func isServed(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, res := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return status.Code(conn.Invoke(ctx, name, req, res)) != codes.Unimplemented
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(req)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil {
		err = stream.RecvMsg(res)
	}
	return status.Code(err) != codes.Unimplemented
}
