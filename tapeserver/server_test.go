package tapeserver_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// start serves store for the length of the test and returns a client, and a
// function that drains the server and returns what Serve did.
func start(t *testing.T, store runstore.RunStore, opts *tapeserver.Options) (tapepb.TapeClient, func() error) {
	t.Helper()
	return startServer(t, tapeserver.New(store, patient(opts)))
}

func startServer(t *testing.T, server *tapeserver.Server) (tapepb.TapeClient, func() error) {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	stopped, result := false, error(nil)
	stop := func() error {
		if !stopped {
			cancel()
			stopped, result = true, <-served
		}
		return result
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if err := stop(); err != nil {
			t.Errorf("Serve = %v, want nil after a drain", err)
		}
	})
	return tapepb.NewTapeClient(conn), stop
}

// client serves a store of its own and returns a client of it.
func client(t *testing.T) tapepb.TapeClient {
	t.Helper()
	c, _ := start(t, memory.New(nil).Open(), nil)
	return c
}

func beginRequest(invocation string) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{
		AppName: "treasury", UserId: "ana", SessionId: "s-1", InvocationId: invocation,
		LeaseOwner: "host:1", LeaseTtlMs: 60000, Scopes: []string{"pay", "read"},
	}
}

func begin(t *testing.T, c tapepb.TapeClient, invocation string) *tapepb.BeginRunResponse {
	t.Helper()
	r, err := c.BeginRun(t.Context(), beginRequest(invocation))
	if err != nil {
		t.Fatalf("BeginRun: %v", err)
	}
	return r
}

func getRun(t *testing.T, c tapepb.TapeClient, id string) *tapepb.RunState {
	t.Helper()
	run, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
	if err != nil {
		t.Fatalf("GetRun: %v", err)
	}
	return run
}

// journal returns the n entries that SubscribeRun sends from a seq on.
func journal(t *testing.T, c tapepb.TapeClient, id string, from int64, n int) []*tapepb.JournalEntry {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: id, FromSeq: from})
	if err != nil {
		t.Fatal(err)
	}
	var entries []*tapepb.JournalEntry
	for range n {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d of %d entries: %v", len(entries), n, err)
		}
		entries = append(entries, e)
	}
	return entries
}

// payload returns an entry's payload.
func payload(t *testing.T, e *tapepb.JournalEntry) map[string]any {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(e.GetPayloadJson()), &p); err != nil {
		t.Fatalf("payload %q: %v", e.GetPayloadJson(), err)
	}
	return p
}

// wantStatus checks an error's code and that its message contains text.
func wantStatus(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%s = %v, want %v with %q", what, err, code, text)
	}
}

// infoOf returns an error's ErrorInfo.
func infoOf(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	t.Fatalf("%v has no ErrorInfo", err)
	return nil
}
