package tapeserver_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	pending   = tapepb.EffectStatus_EFFECT_STATUS_PENDING
	confirmed = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
	failed    = tapepb.EffectStatus_EFFECT_STATUS_FAILED
	unknown   = tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN

	nonIdempotent = tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT
	outbox        = tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX
)

func TestDecisions(t *testing.T) { // 16, 17
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	first, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
		RunId: id, Model: "m", RequestJson: `{"q":1}`, ResponseJson: "{\"a\": 2}\n", Rationale: "why", PolicyVersion: "p1",
	})
	if err != nil || first.GetSeq() != 2 || first.GetTsMs() == 0 {
		t.Fatalf("RecordDecision = %v, %v, want seq 2", first, err)
	}
	again, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id, Model: "other", ResponseJson: "x"})
	if err != nil || !proto.Equal(again, first) {
		t.Errorf("RecordDecision again = %v, %v, want %v", again, err, first)
	}
	got, err := c.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id})
	if err != nil || !got.GetFound() || !proto.Equal(got.GetDecision(), first) || first.GetResponseJson() != "{\"a\": 2}\n" {
		t.Errorf("GetDecision = %v, %v, want %v", got, err, first)
	}
	if got, err := c.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id, DecisionIndex: 1}); err != nil || got.GetFound() || got.GetDecision() != nil {
		t.Errorf("GetDecision(1) = %v, %v, want not found", got, err)
	}
	if cursor := getRun(t, c, id).GetSeqCursor(); cursor != 2 {
		t.Errorf("cursor %d, want 2: the replay journals nothing", cursor)
	}
}

func TestEffects(t *testing.T) { // 18 to 25
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	sweep := &tapepb.BeginEffectRequest{RunId: id, ToolName: "execute_sweep", RequestJson: `{"n":1}`}
	key := id + "/decision-0/execute_sweep/0"
	_, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, Status: confirmed})
	wantStatus(t, "CompleteEffect before BeginEffect", err, codes.FailedPrecondition, "complete_effect before begin_effect")
	_, err = c.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: key})
	wantStatus(t, "ReconcileEffect of nothing", err, codes.NotFound, "no such effect")

	first, err := c.BeginEffect(t.Context(), sweep)
	want := &tapepb.BeginEffectResponse{
		Seq: 2, IdempotencyKey: key, Status: pending, RunId: id, DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_INLINE,
	}
	if err != nil || !proto.Equal(first, want) {
		t.Fatalf("BeginEffect = %v, %v, want %v", first, err, want)
	}
	if again, err := c.BeginEffect(t.Context(), sweep); err != nil || !proto.Equal(again, want) {
		t.Errorf("BeginEffect again = %v, %v, want %v", again, err, want)
	}
	for _, e := range []struct {
		req *tapepb.BeginEffectRequest
		key string
	}{
		{&tapepb.BeginEffectRequest{RunId: id, DecisionIndex: -1, ToolName: "post_gl"}, id + "/no-decision/post_gl/0"},
		{&tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", ToolName: "t"}, "K"},
	} {
		if got, err := c.BeginEffect(t.Context(), e.req); err != nil || got.GetIdempotencyKey() != e.key || got.GetStatus() != pending {
			t.Errorf("BeginEffect = %v, %v, want %s", got, err, e.key)
		}
	}

	done, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{
		RunId: id, IdempotencyKey: key, Status: confirmed, ResponseJson: "R"})
	if err != nil || done.GetStatus() != confirmed || done.GetResponseJson() != "R" || done.GetRequestJson() != `{"n":1}` || done.GetSeq() != 2 {
		t.Errorf("CompleteEffect = %v, %v, want CONFIRMED with R", done, err)
	}
	late, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, Status: failed, ErrorJson: "E"})
	got, getErr := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: key})
	if err != nil || getErr != nil || !got.GetFound() || !proto.Equal(late, done) || !proto.Equal(got.GetEffect(), done) {
		t.Errorf("late CompleteEffect = %v, %v; GetEffect = %v, %v; want %v", late, err, got, getErr, done)
	}
	want.Status, want.ResponseJson = confirmed, "R"
	if replay, err := c.BeginEffect(t.Context(), sweep); err != nil || !proto.Equal(replay, want) {
		t.Errorf("BeginEffect after completion = %v, %v, want %v", replay, err, want)
	}
}

func TestReconcileAndListPending(t *testing.T) { // 25
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	for _, key := range []string{"K", "L"} {
		if _, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: key, ToolName: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "K", Status: unknown}); err != nil {
		t.Fatal(err)
	}
	list := func(req *tapepb.ListPendingEffectsRequest) (keys []string) {
		t.Helper()
		l, err := c.ListPendingEffects(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.GetEffects() {
			keys = append(keys, e.GetIdempotencyKey())
		}
		slices.Sort(keys)
		return keys
	}
	for _, q := range []struct {
		req  *tapepb.ListPendingEffectsRequest
		want []string
	}{
		{&tapepb.ListPendingEffectsRequest{}, []string{"K", "L"}},
		{&tapepb.ListPendingEffectsRequest{IncludePending: true}, []string{"L"}},
		{&tapepb.ListPendingEffectsRequest{IncludeUnknown: true}, []string{"K"}},
		{&tapepb.ListPendingEffectsRequest{OlderThanMs: 1}, []string{"K"}},
		{&tapepb.ListPendingEffectsRequest{IncludePending: true, OlderThanMs: -1}, nil},
	} {
		if got := list(q.req); !slices.Equal(got, q.want) {
			t.Errorf("ListPendingEffects(%v) = %v, want %v", q.req, got, q.want)
		}
	}
	for _, status := range []tapepb.EffectStatus{confirmed, failed} {
		e, err := c.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{
			RunId: id, IdempotencyKey: "K", ResolvedStatus: status, ResponseJson: status.String()})
		if err != nil || e.GetStatus() != confirmed || e.GetResponseJson() != confirmed.String() {
			t.Errorf("ReconcileEffect(%v) = %v, %v, want CONFIRMED as first told", status, e, err)
		}
	}
	if got := list(&tapepb.ListPendingEffectsRequest{}); !slices.Equal(got, []string{"L"}) {
		t.Errorf("pending = %v, want L alone", got)
	}
}

func TestScopesAndSemantics(t *testing.T) { // 15, 26 to 30
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	for _, e := range []struct {
		name string
		req  *tapepb.BeginEffectRequest
		code codes.Code
		text string
	}{
		{"inline", &tapepb.BeginEffectRequest{Semantics: nonIdempotent, Scope: "pay"}, codes.Internal,
			"tape store: begin_effect: NON_IDEMPOTENT semantics requires OUTBOX dispatch"},
		{"no scope", &tapepb.BeginEffectRequest{Semantics: nonIdempotent, DispatchMode: outbox}, codes.PermissionDenied,
			`tape store: policy violation — scope "<required>" not granted to run`},
		{"not granted", &tapepb.BeginEffectRequest{Scope: "admin"}, codes.PermissionDenied,
			`tape store: policy violation — scope "admin" not granted to run`},
		{"business key alone", &tapepb.BeginEffectRequest{BusinessKey: "b"}, codes.Internal,
			"tape store: begin_effect: business_key requires connector"},
	} {
		e.req.RunId, e.req.CustomKey, e.req.ToolName = id, "K", "pay"
		_, err := c.BeginEffect(t.Context(), e.req)
		wantStatus(t, e.name, err, e.code, e.text)
	}
	if got, err := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: "K"}); err != nil || got.GetFound() {
		t.Errorf("GetEffect = %v, %v, want nothing of the refused ones", got, err)
	}
	if r, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{
		RunId: id, CustomKey: "K", ToolName: "pay", Semantics: nonIdempotent, DispatchMode: outbox, Scope: "pay"}); err != nil || r.GetStatus() != pending {
		t.Errorf("BeginEffect with a granted scope = %v, %v, want PENDING", r, err)
	}
	entries := journal(t, c, id, 2, 2)
	denied := payload(t, entries[0])
	if entries[0].GetKind() != "policy" || denied["violation"] != "scope_not_granted" || denied["required_scope"] != "admin" ||
		denied["tool"] != "pay" || !slices.Equal(denied["granted_scopes"].([]any), []any{"pay", "read"}) {
		t.Errorf("entry = %v, want the denial", entries[0])
	}
	begun := payload(t, entries[1])
	if entries[1].GetKind() != "effect" || begun["semantics"] != 2.0 || begun["dispatch_mode"] != 2.0 || begun["status"] != "pending" {
		t.Errorf("entry = %v, want the pending effect with semantics 2 and mode 2", entries[1])
	}
	bare, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "no scopes"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: bare.GetRunId(), ToolName: "t"}); err != nil || r.GetStatus() != pending {
		t.Errorf("BeginEffect without any scope = %v, %v, want PENDING", r, err)
	}
}

func TestBusinessKeys(t *testing.T) { // 31
	t.Parallel()
	c := client(t)
	a, b := begin(t, c, "a").GetRunId(), begin(t, c, "b").GetRunId()
	pay := func(run, connector string) *tapepb.BeginEffectResponse {
		t.Helper()
		r, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: run, ToolName: "pay", Connector: connector, BusinessKey: "invoice-1"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := pay(a, "bank")
	if second := pay(b, "bank"); !proto.Equal(first, second) || second.GetIdempotencyKey() != a+"/decision-0/pay/0" {
		t.Errorf("in another run: %v, want %v", second, first)
	}
	if other := pay(b, "another bank"); other.GetIdempotencyKey() != b+"/decision-0/pay/0" {
		t.Errorf("of another connector: %v, want an effect of the run", other)
	}
}
