package tapeserver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// served are the methods of this version; the others answer UNIMPLEMENTED.
var served = strings.Fields("BeginRun ResumeRun EndRun GetRun ListRunsToRecover SubscribeRun RecordDecision GetDecision " +
	"BeginEffect CompleteEffect GetEffect ReconcileEffect ListPendingEffects " +
	"ListEffectsToDispatch ClaimEffectDispatch RecordDispatchAttempt RecordExternalObservation AwaitSignal SendSignal " +
	"CreateSession GetSession ListSessions DeleteSession AppendEvent " +
	"RegisterCompensation ListObligations ListUnresolvedObligations ClaimObligation RecordObligationAttempt ResolveObligation " +
	"SetBudget AdmitBudget ChargeBudget " +
	"SetTimer CancelTimer ListDueTimers ListCompactableRuns CompactRun " +
	"WriteValue GetValue WatchValue DeleteValue " +
	"SubscribeEvents SubscribeBySubject " +
	"RegisterReaction DeregisterReaction ListReactions ClaimTasks CompleteTask NackTask ListTasks")

func TestTheContractIsDeclaredWhole(t *testing.T) {
	t.Parallel()
	file := tapepb.File_tape_proto
	fields := 0
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		for j := range m.Fields().Len() {
			if m.Fields().Get(j).Number() < 1000 && m.Name() != "Grant" && m.Name() != "Fence" {
				fields++
			}
		}
	}
	got := fmt.Sprint(file.Services().Get(0).Methods().Len(), file.Messages().Len()-2, fields, file.Enums().Len())
	if want := "51 96 400 8"; got != want {
		t.Errorf("methods, messages, fields, enums: %s, want %s", got, want)
	}
}

func TestMethodsOfLaterWorkSayTheirName(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tapeserver.New(memory.New(nil).Open(), patient(nil)).Serve(ctx, lis) }()
	defer func() { cancel(); <-done }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if slices.Contains(served, string(m.Name())) {
			continue
		}
		wantStatus(t, string(m.Name()), invoke(t, conn, m), codes.Unimplemented, string(m.Name()))
	}
}

// invoke calls a method with an empty request, or one with a fence where it takes
// one.
func invoke(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	t.Helper()
	req := dynamicpb.NewMessage(m.Input())
	if fence := m.Input().Fields().ByName("fence"); fence != nil {
		req.Set(fence, protoreflect.ValueOfMessage(req.NewField(fence).Message()))
	}
	name, res := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		return conn.Invoke(t.Context(), name, req, res)
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(proto.Message(req)); err != nil {
		return err
	}
	return stream.RecvMsg(res)
}

func TestOversizedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	c, _ := start(t, memory.New(nil).Open(), &tapeserver.Options{MaxMessageBytes: 1000})
	_, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: strings.Repeat("x", 1001)})
	wantStatus(t, "BeginRun", err, codes.ResourceExhausted, "1000")
}

func TestProbes(t *testing.T) { // 84
	t.Parallel()
	store := memory.New(nil).Open()
	probes := &tapeserver.Probes{}
	server := httptest.NewServer(probes)
	defer server.Close()
	probe := func(path string, code int, body string) {
		t.Helper()
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || res.StatusCode != code || string(got) != body ||
				res.Header.Get("Content-Type") != "text/plain" || res.ContentLength != int64(len(body)) || !res.Close {
				t.Errorf("%s %s = %d %q %v, close %v; want %d %q", method, path, res.StatusCode, got, res.Header, res.Close, code, body)
			}
		}
	}
	probe("/healthz", 200, "ok\n")
	probe("/readyz", 503, "starting\n")
	probes.SetServer(tapeserver.New(store, nil))
	probe("/", 200, "ok\n")
	probe("/readyz", 200, "ok\n")
	probe("/nope", 404, "not found\n")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	probe("/readyz", 503, "the store does not answer\n")
	probe("/healthz", 200, "ok\n")
}

// faulty is a store with a fault in one method.
type faulty struct{ runstore.RunStore }

func (faulty) GetRun(context.Context, runstore.RunID) (runstore.Run, error) { panic("a fault") }

func TestAFaultInOneCallEndsNoOther(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c, stop := start(t, faulty{memory.New(nil).Open()}, &tapeserver.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	wantStatus(t, "GetRun", err, codes.Internal, "see the server's log")
	begin(t, c, "i")
	if err := stop(); err != nil || !strings.Contains(out.String(), "a fault") {
		t.Errorf("Serve = %v, log %q; want the fault in the log", err, out.String())
	}
}
