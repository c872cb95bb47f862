package tapeserver_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// tenantRuns are the runs of a tenant that has entries in every list and in the feed.
type tenantRuns struct {
	tenant            string // every text of the runs contains it
	busy, idle, ended string
}

// fill begins the nth runs of a tenant; call is the context of a principal that may do everything.
func fill(call context.Context, t *testing.T, c tapepb.TapeClient, tenant string, n int) tenantRuns {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	begin := func(name string) string {
		t.Helper()
		r, err := c.BeginRun(call, &tapepb.BeginRunRequest{
			AppName: "app", UserId: "user", SessionId: "session", InvocationId: fmt.Sprint(name, tenant, n), TenantId: tenant, Actor: tenant, LeaseOwner: tenant,
		})
		must(r, err)
		return r.GetRunId()
	}
	runs := tenantRuns{tenant, begin("busy"), begin("idle"), begin("ended")}
	text := fmt.Sprintf("%q", tenant)
	for i, mode := range []tapepb.EffectDispatchMode{tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_INLINE, tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX} {
		e, err := c.BeginEffect(call, &tapepb.BeginEffectRequest{RunId: runs.busy, CustomKey: fmt.Sprint(tenant, i), Connector: "bank", DispatchMode: mode, RequestJson: text})
		must(e, err)
		if i == 0 {
			_, err = c.CompleteEffect(call, &tapepb.CompleteEffectRequest{RunId: runs.busy, IdempotencyKey: e.GetIdempotencyKey(), Status: tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN, ErrorJson: text})
			must(nil, err)
		}
	}
	for _, settle := range []bool{false, true} {
		o, err := c.RegisterCompensation(call, &tapepb.RegisterCompensationRequest{RunId: runs.busy, Kind: tenant + fmt.Sprint(settle), PayloadJson: text})
		must(o, err)
		if settle {
			must(c.ResolveObligation(call, &tapepb.ResolveObligationRequest{RunId: runs.busy, ObligationSeq: o.GetSeq(), Status: tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK}))
		}
	}
	must(c.SetTimer(call, &tapepb.SetTimerRequest{RunId: runs.busy, TimerId: tenant, FireAtMs: 1, PayloadJson: text}))
	must(c.RecordDecision(call, &tapepb.RecordDecisionRequest{RunId: runs.busy, Model: tenant, RequestJson: text}))
	must(c.AwaitSignal(call, &tapepb.AwaitSignalRequest{RunId: runs.idle, GateName: "gate", PayloadJson: text}))
	must(c.SendSignal(call, &tapepb.SendSignalRequest{RunId: runs.idle, GateName: "gate", ResolutionJson: text}))
	must(c.EndRun(call, &tapepb.EndRunRequest{RunId: runs.ended, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL, DetailJson: text}))
	return runs
}

// replyOf returns the encoded reply of a call with the texts in the fields that its request has: of a
// stream the first message, or nothing if none comes for a while.
func replyOf(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, texts map[string]string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, res := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	for name, text := range texts {
		f := m.Input().Fields().ByName(protoreflect.Name(name))
		switch {
		case f == nil:
		case f.Kind() == protoreflect.StringKind:
			req.Set(f, protoreflect.ValueOfString(text))
		}
	}
	for _, name := range []protoreflect.Name{"include_pending", "include_stuck", "include_unknown", "include_committed_expired"} {
		if f := m.Input().Fields().ByName(name); f != nil {
			req.Set(f, protoreflect.ValueOfBool(true))
		}
	}
	name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		err := conn.Invoke(ctx, name, req, res)
		return encoded(res), err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return nil, err
	}
	_ = stream.SendMsg(proto.Message(req))
	_, _ = stream.Header() // a stream that is admitted sends its headers at once
	defer time.AfterFunc(300*time.Millisecond, cancel).Stop()
	if err = stream.RecvMsg(res); status.Code(err) == codes.Canceled {
		err = nil
	}
	return encoded(res), err
}

func encoded(m proto.Message) []byte {
	data, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return data
}

// methodsOfTape are the methods of the service.
func methodsOfTape() (all []protoreflect.MethodDescriptor) {
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		all = append(all, methods.Get(i))
	}
	return all
}

// TestNothingOfOtherTenants calls every RPC of the descriptors as a principal of a tenant without runs,
// and as one of a tenant with runs, with the ids of another tenant's objects. No reply and no refusal
// contains anything of the other tenant, and none differs from that for ids of nothing.
func TestNothingOfOtherTenants(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "none operate tenant-none", "some operate tenant-some", "all operate")
	store := memory.New(nil).Open()
	c, conn := startAuth(t, store, &tapeserver.Options{Auth: check})
	all := as(t.Context(), "all")
	if _, err := c.RegisterReaction(all, &tapepb.Reaction{ReactionId: "reaction", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, AgentApp: "tenant-other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSession(all, &tapepb.CreateSessionRequest{AppName: "tenant-other", UserId: "user", SessionId: "tenant-other", StateJson: `{"tenant-other":1}`}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteValue(all, &tapepb.WriteValueRequest{Namespace: "tenant-other", Key: "tenant-other", ValueJson: `"tenant-other"`, IfVersion: -1}); err != nil {
		t.Fatal(err)
	}
	other := fill(all, t, c, "tenant-other", 0)
	fill(all, t, c, "tenant-some", 0)
	task := ""
	for task == "" {
		tasks, err := c.ListTasks(all, &tapepb.ListTasksRequest{ReactionId: "reaction"})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range tasks.GetTasks() {
			if k.GetSourceRunId() == other.busy {
				task = k.GetTaskId()
			}
		}
	}
	before, err := stateOf(all, c, other)
	if err != nil {
		t.Fatal(err)
	}
	// The texts of requests: ids of the other tenant's objects, and ids like them of nothing.
	const nothing = "tenant-void"
	real := map[string]string{
		"run_id": other.busy, "tenant_id": "tenant-other", "app_name": "tenant-other", "user_id": "user", "session_id": "tenant-other",
		"namespace": "tenant-other", "key": "tenant-other", "reaction_id": "reaction", "task_id": task, "gate_name": "gate",
		"timer_id": "tenant-other", "idempotency_key": "tenant-other1", "connector": "bank", "owner": "w", "claimer": "w",
	}
	void := map[string]string{}
	for name, text := range real {
		void[name] = strings.ReplaceAll(text, "tenant-other", nothing)
	}
	void["run_id"], void["reaction_id"], void["task_id"] = "00000000-0000-4000-8000-000000000000", "none", strings.Repeat("0", 64)+"-0-00000000000001"
	for _, m := range methodsOfTape() {
		for _, caller := range []string{"none", "some"} {
			ctx := as(t.Context(), caller)
			got, err := replyOf(ctx, conn, m, real)
			_, wantErr := replyOf(ctx, conn, m, void)
			for _, text := range []string{"tenant-other", other.busy, other.idle, other.ended} {
				if bytes.Contains(got, []byte(text)) || strings.Contains(errorText(err), text) {
					t.Errorf("%s as %s reveals %q: %q, %v", m.Name(), caller, text, got, err)
				}
			}
			if errorText(err) != errorText(wantErr) {
				t.Errorf("%s as %s: %v for another tenant's object, and %v for none", m.Name(), caller, err, wantErr)
			}
			if caller == "none" && isFiltered(m) && (err != nil || len(got) > 0) {
				t.Errorf("%s as %s: %q, %v, want an empty reply", m.Name(), caller, got, err)
			}
			if caller == "some" && isFiltered(m) && !m.IsStreamingServer() && !bytes.Contains(got, []byte("tenant-some")) {
				t.Errorf("%s as %s: %q, %v, want the tenant's own", m.Name(), caller, got, err)
			}
		}
	}
	if after, err := stateOf(all, c, other); err != nil || after != before {
		t.Errorf("the runs of the other tenant have changed:\n%s\nthey were\n%s\n%v", after, before, err)
	}
}

// errorText returns all that a client sees of an error.
func errorText(err error) string { return fmt.Sprint(status.Convert(err).Proto()) }

// stateOf returns the state of a tenant's runs.
func stateOf(ctx context.Context, c tapepb.TapeClient, runs tenantRuns) (string, error) {
	var text strings.Builder
	for _, id := range []string{runs.busy, runs.idle, runs.ended} {
		run, err := c.GetRun(ctx, &tapepb.GetRunRequest{RunId: id})
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&text, run)
	}
	effect, err := c.GetEffect(ctx, &tapepb.GetEffectRequest{RunId: runs.busy, IdempotencyKey: runs.tenant + "1"})
	if err != nil {
		return "", err
	}
	obligations, err := c.ListObligations(ctx, &tapepb.ListObligationsRequest{RunId: runs.busy})
	if err != nil {
		return "", err
	}
	timers, err := c.ListDueTimers(ctx, &tapepb.ListDueTimersRequest{})
	if err != nil {
		return "", err
	}
	fmt.Fprintln(&text, effect, obligations)
	for _, timer := range timers.GetTimers() {
		if timer.GetRunId() == runs.busy {
			fmt.Fprintln(&text, timer)
		}
	}
	return text.String(), nil
}

// rowsOf returns the rows of a list's reply, and its next_page_token.
func rowsOf(reply proto.Message) (rows []string, next string) {
	reply.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() == "next_page_token" {
			next = v.String()
			return true
		}
		for i := range v.List().Len() {
			rows = append(rows, string(encoded(v.List().Get(i).Message().Interface())))
		}
		return true
	})
	return rows, next
}

// TestPagesOfTenants reads every list as a limited principal, in pages of every size: the pages together
// have what a principal without a limit sees of the tenants, in order and each once.
func TestPagesOfTenants(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "some read tenant-a tenant-c", "all operate", "timers drive tenant-a tenant-c")
	store := memory.New(nil).Open()
	c, conn := startAuth(t, store, &tapeserver.Options{Auth: check})
	_, replica := startAuth(t, store, &tapeserver.Options{Auth: check}) // another server of the store
	all := as(t.Context(), "all")
	own := map[string]bool{}
	for i := range 9 {
		tenant := "tenant-" + string("abc"[i%3])
		runs := fill(all, t, c, tenant, i)
		if tenant != "tenant-b" {
			own[runs.busy], own[runs.idle], own[runs.ended] = true, true, true
		}
	}
	ids := slices.Collect(maps.Keys(own))
	for _, m := range methodsOfTape() {
		if !isFiltered(m) || m.IsStreamingServer() {
			continue
		}
		page := func(conn *grpc.ClientConn, caller, token string, limit int64) ([]string, string, error) {
			req, res := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
			for i := range m.Input().Fields().Len() {
				switch f := m.Input().Fields().Get(i); {
				case f.Name() == "page_token" && token != "":
					req.Set(f, protoreflect.ValueOfString(token))
				case f.Name() == "limit" && f.Kind() == protoreflect.Int32Kind:
					req.Set(f, protoreflect.ValueOfInt32(int32(limit)))
				case f.Name() == "limit":
					req.Set(f, protoreflect.ValueOfInt64(limit))
				case strings.HasPrefix(string(f.Name()), "include_"):
					req.Set(f, protoreflect.ValueOfBool(true))
				}
			}
			err := conn.Invoke(as(t.Context(), caller), fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), req, res)
			rows, next := rowsOf(res)
			return rows, next, err
		}
		whole, next, err := page(conn, "all", "", 100)
		if err != nil || next != "" {
			t.Fatalf("%s: token %q, %v", m.Name(), next, err)
		}
		want := slices.DeleteFunc(slices.Clone(whole), func(row string) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(row, id) })
		})
		if len(want) < 6 || len(whole)-len(want) < 3 {
			t.Fatalf("%s: %d rows of %d are the principal's", m.Name(), len(want), len(whole))
		}
		caller := "some"
		if roleNeeded(m) == "drive" {
			caller = "timers"
		}
		for limit := int64(1); limit < int64(len(want))+2; limit++ {
			var got []string
			token, first := "", ""
			for calls := 0; ; calls++ {
				rows, next, err := page([]*grpc.ClientConn{conn, replica}[calls%2], caller, token, limit)
				if err != nil || int64(len(rows)) > limit || calls > len(whole)+2 {
					t.Fatalf("%s, limit %d, call %d: %d rows, %v", m.Name(), limit, calls, len(rows), err)
				}
				got = append(got, rows...)
				if first == "" {
					first = next
				}
				if next != "" && len(next) != len(first) {
					t.Errorf("%s: tokens of %d and %d bytes", m.Name(), len(first), len(next))
				}
				if token = next; token == "" {
					break
				}
			}
			slices.Sort(got)
			sorted := slices.Sorted(slices.Values(want))
			if !slices.Equal(got, sorted) {
				t.Errorf("%s in pages of %d: %d rows, want %d", m.Name(), limit, len(got), len(sorted))
			}
			if limit > 1 || first == "" {
				continue
			}
			for what, bad := range map[string]string{"a damaged token": first[:len(first)-2] + "AA", "no token": "x", "a short token": first[:20]} {
				if _, _, err := page(conn, caller, bad, 1); status.Code(err) != codes.InvalidArgument {
					t.Errorf("%s with %s: %v", m.Name(), what, err)
				}
			}
			if _, _, err := page(conn, "all", first, 1); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s with a token and without a limit to tenants: %v", m.Name(), err)
			}
			if m.Name() != "ListDueTimers" {
				_, err := c.ListDueTimers(as(t.Context(), "timers"), &tapepb.ListDueTimersRequest{PageToken: first})
				wantStatus(t, "ListDueTimers with the token of "+string(m.Name()), err, codes.InvalidArgument, "page_token")
			}
		}
	}
}
