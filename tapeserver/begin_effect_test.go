package tapeserver_test

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// garbage is a codec whose messages cannot be decoded.
type garbage struct{ encoding.CodecV2 }

func (garbage) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer("\xff\xff\xff")}, nil
}

// TestUndecodableBeginEffectIsDenied checks that a client which acts after every status of BeginEffect but
// PERMISSION_DENIED does not act after a request that the server cannot decode.
func TestUndecodableBeginEffectIsDenied(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), nil)
	codec := encoding.GetCodecV2("proto")
	for name, c := range map[string]struct {
		codec encoding.CodecV2
		text  string
	}{
		"invalid UTF-8": {damaging{codec}, "field tool_name is not valid UTF-8"},
		"garbage":       {garbage{codec}, "cannot be decoded"},
	} {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c.codec)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		client := tapepb.NewTapeClient(conn)
		_, err = client.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: "r", ToolName: "§"})
		wantStatus(t, name, err, codes.PermissionDenied, c.text)
		if reason := reasonIn(err); reason != "INVALID" {
			t.Errorf("%s: the reason is %q, want INVALID", name, reason)
		}
		_, err = client.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: "r", IdempotencyKey: "§"})
		if status.Code(err) != codes.Internal { // gRPC's own status
			t.Errorf("%s, CompleteEffect: %v, want INTERNAL", name, err)
		}
	}
}

// faultyCommits is a store whose Commit panics once it is armed.
type faultyCommits struct {
	runstore.RunStore
	armed *atomic.Bool
}

func (s faultyCommits) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.armed.Load() {
		panic("a fault")
	}
	return s.RunStore.Commit(ctx, b)
}

// TestAFaultInBeginEffectIsDenied checks that a client does not act after a BeginEffect that ended with a
// fault of the server. The outcome is unknown: the fault may have come after the commit.
func TestAFaultInBeginEffectIsDenied(t *testing.T) {
	t.Parallel()
	store := faultyCommits{memory.New(nil).Open(), new(atomic.Bool)}
	c, _ := start(t, store, &tapeserver.Options{NoMatcher: true, Logger: quietly})
	id := begin(t, c, "i").GetRunId()
	store.armed.Store(true)
	if acts(t.Context(), c, id, "k") {
		t.Error("the client acts after a fault")
	}
	_, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "k"})
	wantStatus(t, "BeginEffect", err, codes.PermissionDenied, "see the server's log")
	if reason := reasonIn(err); reason != "UNKNOWN_OUTCOME" {
		t.Errorf("the reason is %q, want UNKNOWN_OUTCOME", reason)
	}
}
