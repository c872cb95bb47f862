package tapeserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// call is one writing method on a run that has decision 0, the PENDING effects "open" and "outbox",
// the CONFIRMED effect "done", the obligation preparedObligation and the timer "t". Its name begins
// with that of the RPC.
type call struct {
	name string
	do   func(context.Context, tapepb.TapeClient, string, *tapepb.Fence) error
}

// free reports whether the method goes without a fence in any mode.
func (w call) free() bool {
	method, _, _ := strings.Cut(w.name, " ")
	return tape.Authorities()[method] != tape.Driver
}

// refusal returns the code of a refusal that other methods answer by usual.
func (w call) refusal(usual codes.Code) codes.Code {
	if strings.HasPrefix(w.name, "BeginEffect") {
		return codes.PermissionDenied
	}
	return usual
}

var calls = []call{
	{name: "RecordDecision", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: 1, Fence: f})
		return err
	}},
	{name: "RecordDecision replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RecordDecision(ctx, &tapepb.RecordDecisionRequest{RunId: id, Fence: f})
		return err
	}},
	{name: "BeginEffect", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "new", Scope: "pay", Fence: f})
		return err
	}},
	{name: "BeginEffect replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: id, CustomKey: "done", Fence: f})
		return err
	}},
	{name: "CompleteEffect", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "open", Status: failed, Fence: f})
		return err
	}},
	{name: "CompleteEffect replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "done", Status: failed, Fence: f})
		return err
	}},
	{name: "ClaimEffectDispatch", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ClaimEffectDispatch(ctx, &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "outbox", Fence: f})
		return err
	}},
	{name: "RecordDispatchAttempt", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RecordDispatchAttempt(ctx, &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "outbox", Fence: f})
		return err
	}},
	{name: "RecordExternalObservation", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RecordExternalObservation(ctx, &tapepb.RecordExternalObservationRequest{
			RunId: id, IdempotencyKey: "outbox", Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_STUCK, Fence: f,
		})
		return err
	}},
	{name: "AwaitSignal", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.AwaitSignal(ctx, &tapepb.AwaitSignalRequest{RunId: id, GateName: "empty", Fence: f})
		return err
	}},
	{name: "SendSignal", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.SendSignal(ctx, &tapepb.SendSignalRequest{RunId: id, GateName: "empty", Fence: f})
		return err
	}},
	{name: "ReconcileEffect", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "open", ResolvedStatus: failed, Fence: f})
		return err
	}},
	{name: "ReconcileEffect replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "done", ResolvedStatus: failed, Fence: f})
		return err
	}},
	{name: "ResumeRun", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ResumeRun(ctx, &tapepb.ResumeRunRequest{RunId: id, LeaseTtlMs: 60000, Fence: f})
		return err
	}},
	{name: "BeginRun", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		req := beginRequest("i")
		req.Fence = f
		_, err := c.BeginRun(ctx, req)
		return err
	}},
	{name: "EndRun", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.EndRun(ctx, &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL, Fence: f})
		return err
	}},
	{name: "RegisterCompensation", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "new", Fence: f})
		return err
	}},
	{name: "RegisterCompensation replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "open", Fence: f})
		return err
	}},
	{name: "ClaimObligation", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ClaimObligation(ctx, &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: preparedObligation, Fence: f})
		return err
	}},
	{name: "ClaimObligation of nothing", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ClaimObligation(ctx, &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: 1, Fence: f})
		return err
	}},
	{name: "RecordObligationAttempt", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.RecordObligationAttempt(ctx, &tapepb.RecordObligationAttemptRequest{RunId: id, ObligationSeq: preparedObligation, Fence: f})
		return err
	}},
	{name: "ResolveObligation", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ResolveObligation(ctx, &tapepb.ResolveObligationRequest{RunId: id, ObligationSeq: preparedObligation, Fence: f})
		return err
	}},
	{name: "SetBudget", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.SetBudget(ctx, &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1, Fence: f})
		return err
	}},
	{name: "ChargeBudget", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.ChargeBudget(ctx, &tapepb.ChargeBudgetRequest{RunId: id, Usd: 1, Fence: f})
		return err
	}},
	{name: "SetTimer", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.SetTimer(ctx, &tapepb.SetTimerRequest{RunId: id, TimerId: "new", FireAtMs: 1, Fence: f})
		return err
	}},
	{name: "SetTimer replayed", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.SetTimer(ctx, &tapepb.SetTimerRequest{RunId: id, TimerId: "t", FireAtMs: 1, Fence: f})
		return err
	}},
	{name: "CancelTimer", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.CancelTimer(ctx, &tapepb.CancelTimerRequest{RunId: id, TimerId: "t", Fence: f})
		return err
	}},
	{name: "CancelTimer of nothing", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.CancelTimer(ctx, &tapepb.CancelTimerRequest{RunId: id, TimerId: "none", Fence: f})
		return err
	}},
	// The session is no part of the run.
	{name: "CreateSession", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		_, err := c.CreateSession(ctx, &tapepb.CreateSessionRequest{AppName: "app", SessionId: "s", Fence: f})
		return err
	}},
	{name: "AppendEvent", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		_, err := c.AppendEvent(ctx, &tapepb.AppendEventRequest{AppName: "app", SessionId: "s", Event: &tapepb.EventRecord{}, Fence: f})
		return err
	}},
	{name: "DeleteSession", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		_, err := c.DeleteSession(ctx, &tapepb.DeleteSessionRequest{AppName: "app", SessionId: "s", Fence: f})
		return err
	}},
	// So is a value.
	{name: "WriteValue", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		_, err := c.WriteValue(ctx, &tapepb.WriteValueRequest{Key: "k", ValueJson: "1", IfVersion: -1, Fence: f})
		return err
	}},
	{name: "DeleteValue", do: func(ctx context.Context, c tapepb.TapeClient, _ string, f *tapepb.Fence) error {
		_, err := c.DeleteValue(ctx, &tapepb.DeleteValueRequest{Key: "k", Fence: f})
		return err
	}},
	// A run that goes on is not compacted, and one that has ended has no grant.
	{name: "CompactRun", do: func(ctx context.Context, c tapepb.TapeClient, id string, f *tapepb.Fence) error {
		_, err := c.CompactRun(ctx, &tapepb.CompactRunRequest{RunId: id, Fence: f})
		if strings.Contains(status.Convert(err).Message(), "not terminal") {
			return nil
		}
		return err
	}},
}

// preparedObligation is the seq of the PENDING obligation that prepare registers, right after it
// begins the run.
const preparedObligation = 2

// prepare begins the run that the calls work on.
func prepare(t *testing.T, c tapepb.TapeClient) *tapepb.BeginRunResponse {
	t.Helper()
	r := begin(t, c, "i")
	id := r.GetRunId()
	_, err := c.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "open"})
	if err == nil {
		_, err = c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id})
	}
	for key, mode := range map[string]tapepb.EffectDispatchMode{"open": 0, "outbox": outbox, "done": 0} {
		if err == nil {
			_, err = c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: key, DispatchMode: mode})
		}
	}
	if err == nil {
		_, err = c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "done", Status: confirmed})
	}
	if err == nil {
		_, err = c.SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: id, TimerId: "t", FireAtMs: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fenceField(g *tapepb.Grant) *tapepb.Fence {
	return &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId(), RunId: g.GetRunId()}
}

func fenceHeaders(ctx context.Context, g *tapepb.Grant) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		tapeserver.FenceOwnerHeader, g.GetOwner(),
		tapeserver.FenceTokenHeader, fmt.Sprint(g.GetToken()), tapeserver.FenceGrantHeader, g.GetGrantId(),
		tapeserver.FenceRunHeader, g.GetRunId())
}

func TestAZombieIsRefusedByEveryWritingMethod(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"field", "headers", "both"} {
		for _, w := range calls {
			t.Run(how+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				c := client(t)
				zombie := prepare(t, c)
				second := beginRequest("i")
				second.LeaseOwner = "höst:2"
				if _, err := c.BeginRun(t.Context(), second); err != nil {
					t.Fatal(err)
				}
				before := getRun(t, c, zombie.GetRunId())
				ctx, field := t.Context(), fenceField(zombie.GetGrant())
				if how != "field" {
					ctx = fenceHeaders(ctx, zombie.GetGrant())
				}
				if how == "headers" {
					field = nil
				}
				err := w.do(ctx, c, zombie.GetRunId(), field)
				wantStatus(t, w.name, err, w.refusal(codes.FailedPrecondition), "fenced")
				info := infoOf(t, err)
				if info.GetReason() != "FENCED" || info.GetMetadata()["current_token"] != "2" ||
					info.GetMetadata()["presented_token"] != "1" || info.GetMetadata()["current_owner"] != "höst:2" {
					t.Errorf("details = %v, want FENCED by token 2 of höst:2", info)
				}
				if after := getRun(t, c, zombie.GetRunId()); !proto.Equal(before, after) {
					t.Errorf("the zombie changed %v to %v", before, after)
				}
				if all, err := c.ListSessions(t.Context(), &tapepb.ListSessionsRequest{AppName: "app"}); err != nil || len(all.GetSessions()) > 0 {
					t.Errorf("the zombie made sessions: %v, %v", all, err)
				}
			})
		}
	}
}

func TestTheCurrentGrantAndNoGrant(t *testing.T) {
	t.Parallel()
	for _, mode := range []tape.FenceMode{tape.FencePresented, tape.FenceRequired} {
		for _, w := range calls {
			t.Run(fmt.Sprint(mode, "/", w.name), func(t *testing.T) {
				t.Parallel()
				store := memory.New(nil)
				free, _ := start(t, store.Open(), nil)
				c, _ := start(t, store.Open(), &tapeserver.Options{Fence: mode})
				r := prepare(t, free)
				err := w.do(t.Context(), c, r.GetRunId(), nil)
				switch {
				case mode == tape.FencePresented || w.free():
					if err != nil {
						t.Errorf("without a fence: %v, want no error", err)
					}
					return
				default:
					wantStatus(t, "without a fence", err, w.refusal(codes.FailedPrecondition), "fenced writes only")
					if reason := infoOf(t, err).GetReason(); reason != "FENCE_REQUIRED" {
						t.Errorf("reason %s, want FENCE_REQUIRED", reason)
					}
				}
				if err := w.do(fenceHeaders(t.Context(), r.GetGrant()), c, r.GetRunId(), nil); err != nil {
					t.Errorf("with the grant: %v, want no error", err)
				}
			})
		}
	}
}

func TestGrantsTravel(t *testing.T) {
	t.Parallel()
	c := client(t)
	const owner = "wörker\n🂡:7"
	req := beginRequest("i")
	req.LeaseOwner = owner
	var headers metadata.MD
	r, err := c.BeginRun(t.Context(), req, grpc.Header(&headers))
	if err != nil {
		t.Fatal(err)
	}
	g := r.GetGrant()
	if g.GetOwner() != owner || g.GetToken() != 1 || g.GetGrantId() == "" || g.GetRunId() != r.GetRunId() {
		t.Errorf("grant = %v, want token 1 of %q and run %s", g, owner, r.GetRunId())
	}
	got := fmt.Sprint(headers[tapeserver.GrantOwnerHeader], headers[tapeserver.GrantTokenHeader], headers[tapeserver.GrantIDHeader],
		headers[tapeserver.GrantRunHeader])
	if want := fmt.Sprint([]string{owner}, []string{"1"}, []string{g.GetGrantId()}, []string{r.GetRunId()}); got != want {
		t.Errorf("headers = %s, want %s", got, want)
	}
	// A heartbeat under the fence keeps the grant.
	headers = nil
	beat, err := c.ResumeRun(fenceHeaders(t.Context(), g), &tapepb.ResumeRunRequest{RunId: r.GetRunId(), LeaseTtlMs: 90000}, grpc.Header(&headers))
	if err != nil || !proto.Equal(fenceField(beat.GetGrant()), fenceField(g)) || headers[tapeserver.GrantTokenHeader][0] != "1" {
		t.Errorf("heartbeat = %v, %v, headers %v; want the same grant", beat, err, headers)
	}
	// Without one it takes the lease over.
	taken, err := c.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: r.GetRunId()})
	if err != nil || taken.GetGrant().GetToken() != 2 || taken.GetGrant().GetOwner() == "" || taken.GetRun().GetLeaseOwner() != "" {
		t.Errorf("takeover = %v, %v, want token 2 and an owner without a name", taken, err)
	}
	if _, err := c.RecordDecision(fenceHeaders(t.Context(), taken.GetGrant()), &tapepb.RecordDecisionRequest{RunId: r.GetRunId()}); err != nil {
		t.Errorf("a write of the nameless owner = %v, want no error", err)
	}
	// A run that has ended grants nothing.
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: r.GetRunId(), Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	headers = nil
	ended, err := c.BeginRun(t.Context(), req, grpc.Header(&headers))
	if err != nil || ended.GetGrant() != nil || len(headers[tapeserver.GrantTokenHeader]) != 0 {
		t.Errorf("BeginRun of an ended run = %v, %v, headers %v; want no grant", ended, err, headers)
	}
}

func TestAMalformedFenceIsRefusedNeverIgnored(t *testing.T) {
	t.Parallel()
	const o, k, g = tapeserver.FenceOwnerHeader, tapeserver.FenceTokenHeader, tapeserver.FenceGrantHeader
	whole := []string{o, "x", k, "1", g, "id"}
	for _, c := range []struct {
		name    string
		headers []string
		field   *tapepb.Fence
		blame   string
	}{
		{"no owner", []string{k, "1", g, "id"}, nil, o},
		{"no token", []string{o, "x", g, "id"}, nil, k},
		{"no grant", []string{o, "x", k, "1"}, nil, g},
		{"empty owner", []string{o, "", k, "1", g, "id"}, nil, o},
		{"token is no number", []string{o, "x", k, "one", g, "id"}, nil, k},
		{"token too large", []string{o, "x", k, "9223372036854775808", g, "id"}, nil, k},
		{"token zero", []string{o, "x", k, "0", g, "id"}, nil, "fence.token"},
		{"token twice", append([]string{k, "1"}, whole...), nil, k},
		{"owner as text", []string{"tape-fence-owner", "x", k, "1", g, "id"}, nil, "tape-fence-owner"},
		{"long grant", []string{o, "x", k, "1", g, strings.Repeat("g", 65)}, nil, "fence.grant_id"},
		{"empty field", nil, &tapepb.Fence{}, "fence.token"},
		{"field without owner", nil, &tapepb.Fence{Token: 1, GrantId: "id"}, "fence.owner"},
		{"field without grant", nil, &tapepb.Fence{Token: 1, Owner: "x"}, "fence.grant_id"},
		{"negative token", nil, &tapepb.Fence{Token: -1, Owner: "x", GrantId: "id"}, "fence.token"},
		{"headers and field differ", whole, &tapepb.Fence{Token: 2, Owner: "x", GrantId: "id"}, "fence"},
		{"headers and empty field", whole, &tapepb.Fence{}, "fence"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := client(t)
			r := prepare(t, cl)
			before := getRun(t, cl, r.GetRunId())
			ctx := metadata.AppendToOutgoingContext(t.Context(), c.headers...)
			if len(c.headers) > 0 {
				ctx = metadata.AppendToOutgoingContext(ctx, tapeserver.FenceRunHeader, r.GetRunId())
			}
			field := proto.CloneOf(c.field)
			if field != nil {
				field.RunId = r.GetRunId()
			}
			for _, w := range calls {
				err := w.do(ctx, cl, r.GetRunId(), field)
				wantStatus(t, w.name, err, w.refusal(codes.InvalidArgument), c.blame)
				if field := infoOf(t, err).GetMetadata()["field"]; field != c.blame {
					t.Errorf("%s blames %q, want %q", w.name, field, c.blame)
				}
			}
			if after := getRun(t, cl, r.GetRunId()); !proto.Equal(before, after) {
				t.Errorf("refused writes changed %v to %v", before, after)
			}
		})
	}
}

// A fence names its run. A write to a run may leave the name out, and refuses another's. A write to
// a session needs it, and any run's will do.
func TestAFenceNamesItsRun(t *testing.T) {
	t.Parallel()
	c := client(t)
	r, other := prepare(t, c), begin(t, c, "other")
	before := getRun(t, c, r.GetRunId())
	unnamed := fenceField(r.GetGrant())
	unnamed.RunId = ""
	for _, w := range calls {
		method, _, _ := strings.Cut(w.name, " ")
		shared := strings.Contains("CreateSession AppendEvent DeleteSession WriteValue DeleteValue", method)
		refused := map[string]func() error{
			"field": func() error { return w.do(t.Context(), c, r.GetRunId(), fenceField(other.GetGrant())) },
			"headers": func() error {
				return w.do(fenceHeaders(t.Context(), other.GetGrant()), c, r.GetRunId(), nil)
			},
		}
		if shared {
			for how, do := range refused {
				if err := do(); err != nil {
					t.Errorf("%s under another run's fence, by %s = %v, want no error", w.name, how, err)
				}
			}
			refused = map[string]func() error{"field": func() error { return w.do(t.Context(), c, r.GetRunId(), unnamed) }}
		}
		for how, do := range refused {
			err := do()
			wantStatus(t, w.name+", by "+how, err, w.refusal(codes.InvalidArgument), "fence.run_id")
			if field := infoOf(t, err).GetMetadata()["field"]; field != "fence.run_id" {
				t.Errorf("%s blames %q, want fence.run_id", w.name, field)
			}
		}
	}
	if after := getRun(t, c, r.GetRunId()); !proto.Equal(before, after) {
		t.Errorf("refused writes changed %v to %v", before, after)
	}
	_, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: r.GetRunId(), DecisionIndex: 1, Fence: unnamed})
	if err != nil {
		t.Errorf("RecordDecision under a fence without a run = %v, want no error", err)
	}
}

func TestAFenceFromTheFutureSaysThatTheStoreIsBehind(t *testing.T) {
	t.Parallel()
	c := client(t)
	r := prepare(t, c)
	f := fenceField(r.GetGrant())
	f.Token = 99
	_, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: r.GetRunId(), DecisionIndex: 7, Fence: f})
	wantStatus(t, "RecordDecision", err, codes.DataLoss, "behind")
	if m := infoOf(t, err).GetMetadata(); m["presented"] != "99" || m["known"] != "1" {
		t.Errorf("details = %v, want 99 presented and 1 known", m)
	}
}

// Every request with a fence has an authority, so a new RPC cannot forget it.
func TestEveryWritingMethodHasAnAuthority(t *testing.T) {
	t.Parallel()
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	known := tape.Authorities()
	for i := range methods.Len() {
		m := methods.Get(i)
		_, has := known[string(m.Name())]
		if fenced := m.Input().Fields().ByName("fence") != nil; fenced && !has {
			t.Errorf("%s takes a fence and has no authority", m.Name())
		}
	}
}
