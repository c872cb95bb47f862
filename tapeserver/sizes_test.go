package tapeserver_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestEveryAnswerReachesADefaultClient stores the largest texts that the server lets in and
// reads them with a client of gRPC's default limits. Whatever is larger is refused, with the
// field and the limit.
func TestEveryAnswerReachesADefaultClient(t *testing.T) {
	t.Parallel()
	text := func(n int) string { return strings.Repeat("x", n) }
	t.Run("decisions", func(t *testing.T) {
		t.Parallel()
		c := client(t)
		id := begin(t, c, "i").GetRunId()
		for i, n := range []int{tape.MaxDecision - 200, 4<<20 - 120} { // the second fits into a request only
			req := &tapepb.RecordDecisionRequest{RunId: id, DecisionIndex: int64(i), RequestJson: text(n)}
			if proto.Size(req) > 4<<20 {
				t.Fatalf("the request has %d bytes", proto.Size(req))
			}
			_, err := c.RecordDecision(t.Context(), req)
			got, getErr := c.GetDecision(t.Context(), &tapepb.GetDecisionRequest{RunId: id, DecisionIndex: int64(i)})
			if getErr != nil || got.GetFound() != (err == nil) {
				t.Errorf("%d bytes: RecordDecision = %v; GetDecision = %t, %v", n, err, got.GetFound(), getErr)
			}
			if n > tape.MaxDecision {
				wantTooLarge(t, "RecordDecision", err, "request_json", "4000000")
			} else if err != nil {
				t.Errorf("RecordDecision of %d bytes = %v", n, err)
			}
		}
	})
	t.Run("effects", func(t *testing.T) {
		t.Parallel()
		c := client(t)
		id := begin(t, c, "i").GetRunId()
		req := &tapepb.BeginEffectRequest{
			RunId: id, CustomKey: text(1017), ToolName: strings.Repeat("%", 60_000), RequestJson: text(3 << 20),
		}
		_, err := c.BeginEffect(t.Context(), req)
		wantTooLarge(t, "BeginEffect", err, "request_json", "2000000")
		req.RequestJson = text(tape.MaxRequest)
		if _, err := c.BeginEffect(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		outcome := &tapepb.CompleteEffectRequest{
			RunId: id, IdempotencyKey: req.GetCustomKey(), Status: unknown, ResponseJson: text(tape.MaxOutcome),
		}
		if _, err := c.CompleteEffect(t.Context(), outcome); err != nil {
			t.Errorf("CompleteEffect: %v", err)
		}
		for name, read := range map[string]func() (string, error){
			"BeginEffect": func() (string, error) {
				r, err := c.BeginEffect(t.Context(), req)
				return r.GetResponseJson(), err
			},
			"GetEffect": func() (string, error) {
				r, err := c.GetEffect(t.Context(), &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: req.GetCustomKey()})
				return r.GetEffect().GetResponseJson(), err
			},
			"ListPendingEffects": func() (string, error) {
				r, err := c.ListPendingEffects(t.Context(), &tapepb.ListPendingEffectsRequest{})
				if err != nil || len(r.GetEffects()) != 1 {
					return "", err
				}
				return r.GetEffects()[0].GetResponseJson(), err
			},
		} {
			if response, err := read(); err != nil || response != outcome.GetResponseJson() {
				t.Errorf("%s: a response of %d bytes, %v, want the one of %d", name, len(response), err, tape.MaxOutcome)
			}
		}
		journal(t, c, id, 1, 3) // the subject of a tool of percent signs is three times as long
	})
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		c := client(t)
		req := beginRequest("i")
		req.UserId = strings.Repeat("%", 1<<20-1000)
		_, err := c.BeginRun(t.Context(), req)
		wantTooLarge(t, "BeginRun", err, "user_id", "262144")
		req.UserId = strings.Repeat("%", tape.MaxRunNames-500)
		r, err := c.BeginRun(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		end := &tapepb.EndRunRequest{RunId: r.GetRunId(), Status: tapepb.RunStatus_RUN_STATUS_FAILED, DetailJson: text(tape.MaxDetail)}
		if _, err := c.EndRun(t.Context(), end); err != nil {
			t.Errorf("EndRun: %v", err)
		}
		getRun(t, c, r.GetRunId())
		journal(t, c, r.GetRunId(), 1, 2)
	})
}

func wantTooLarge(t *testing.T, what string, err error, field, limit string) {
	t.Helper()
	code := call{name: what}.refusal(codes.InvalidArgument)
	wantStatus(t, what, err, code, "the limit is "+limit)
	if info := infoOf(t, err); info.GetReason() != "TOO_LARGE" || info.GetMetadata()["field"] != field {
		t.Errorf("%s: %v, want TOO_LARGE for the field %s", what, info, field)
	}
}

// TestRefusalsFitIntoTrailers presents a long scope. gRPC's clients in C and Python drop
// trailers of more than 8 KiB, and the status with them.
func TestRefusalsFitIntoTrailers(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	_, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, ToolName: "pay", Scope: strings.Repeat("é", 10_000)})
	wantStatus(t, "BeginEffect", err, codes.PermissionDenied, "not granted")
	if text := status.Convert(err).Message(); len(text) > 1024 || !utf8.ValidString(text) {
		t.Errorf("a message of %d bytes, want up to 1024: %.80s", len(text), text)
	}
}
