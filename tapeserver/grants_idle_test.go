package tapeserver_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// connectMemory returns a client with its own connection in memory, which ends with the test.
func connectMemory(t *testing.T, lis *bufconn.Listener) tapepb.TapeClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tapepb.NewTapeClient(conn)
}

// TestALongToolKeepsItsGrant checks that the grant of a connection lasts while the driver's tool runs for
// 16 minutes, longer than the server keeps a connection without a call in other modes. Only the helper's
// heartbeats are sent meanwhile, on the helper's connection.
func TestALongToolKeepsItsGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lis := inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Fence: tape.FenceConnection, Logger: quietly}, 1<<20)
		driver, helper := connectMemory(t, lis), connectMemory(t, lis)
		id := beginAs(t, driver, "host:1")
		if _, err := driver.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "long"}); err != nil {
			t.Fatal(err)
		}
		for range 32 {
			time.Sleep(30 * time.Second)
			if _, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 60_000}); err != nil {
				t.Fatalf("a heartbeat: %v", err)
			}
		}
		done, err := driver.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "long", Status: confirmed})
		if err != nil || done.GetStatus() != confirmed {
			t.Errorf("CompleteEffect after 16 minutes = %v, %v; want it CONFIRMED", done, err)
		}
		if _, err := driver.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "next"}); err != nil {
			t.Errorf("the next BeginEffect: %v", err)
		}
	})
}
