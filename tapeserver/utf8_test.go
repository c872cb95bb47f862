package tapeserver_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// damaging is a client's codec that puts a byte which no UTF-8 holds in place of each §.
type damaging struct{ encoding.CodecV2 }

func (c damaging) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message))
	text := strings.ReplaceAll(string(data), "§", "\xff\xff") // as long
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

// A request with a text that is not UTF-8 is refused by the name of the field.
func TestInvalidUTF8NamesItsField(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tapeserver.New(memory.New(nil).Open(), patient(nil)).Serve(ctx, lis) }()
	defer func() { cancel(); <-done }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(damaging{encoding.GetCodecV2("proto")})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := tapepb.NewTapeClient(conn)
	for field, req := range map[string]*tapepb.BeginRunRequest{
		"user_id":      {AppName: "fine", UserId: "u§"},
		"scopes":       {Scopes: []string{"fine", "§"}},
		"labels.key":   {Labels: map[string]string{"§": "fine"}},
		"labels.value": {Labels: map[string]string{"fine": "§"}},
		"fence.owner":  {AppName: "fine", Fence: &tapepb.Fence{Owner: "§"}},
	} {
		_, err := client.BeginRun(t.Context(), req)
		if got, want := status.Convert(err).Message(), "field "+field+" is not valid UTF-8"; !strings.Contains(got, want) {
			t.Errorf("got %q, want one that says %q", got, want)
		}
	}
	if _, err := client.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "ünï", LeaseOwner: "o"}); err != nil && strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("a text in UTF-8 was refused: %v", err)
	}
}

// Stored texts that are not UTF-8, such as another program's, end neither a stream nor a list: their bytes are
// replaced, and what follows them arrives.
func TestStoredTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	store := memory.New(nil).Open()
	c, _ := start(t, quiet{store}, nil)
	id := begin(t, c, "i").GetRunId()
	next := begin(t, c, "next").GetRunId()
	b := runstore.NewBatch("\xfdrun", runstore.Unguarded("a test"))
	b.Append("decision", []byte("{\"decision_index\":1,\"model\":\"\xff\"}"))
	if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "\xfdrun"}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b = runstore.NewBatch(runstore.RunID(id), runstore.Unguarded("a test"))
	b.Append("a\xffkind", []byte("\xfe"))
	if _, err := store.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	decide(t, c, id, 2)

	for name, subscribe := range feeds {
		stream := opened(t)(subscribe(t.Context(), c, "", 0))
		if name == "SubscribeEvents" { // without a pattern it would select a run
			stream = opened(t)(subscribe(t.Context(), c, "/**", 0))
		}
		got := received(t, stream, 4)
		if e := got[2]; e.GetRunId() != "\uFFFDrun" || e.GetPayloadJson() != "{\"decision_index\":1,\"model\":\"\uFFFD\"}" {
			t.Errorf("%s: the entry is %v", name, e)
		}
		if e := got[3]; e.GetRunId() != id || e.GetSeq() != 3 {
			t.Errorf("%s: the following entry is %v", name, e)
		}
	}
	journal, err := c.SubscribeRun(t.Context(), &tapepb.SubscribeRunRequest{RunId: id, FromSeq: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a\uFFFDkind", "decision"} {
		if e, err := journal.Recv(); err != nil || e.GetKind() != want {
			t.Errorf("SubscribeRun: %v, %v, want the kind %q", e, err, want)
		}
	}

	if _, err := store.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: runstore.RunID(id), Preempt: "a test",
		LeaseSpec: runstore.LeaseSpec{Owner: "host\xff", Grant: "g", TTL: time.Second},
	}); err != nil {
		t.Fatal(err)
	}
	listed, err := c.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{NowMs: time.Now().Add(time.Hour).UnixMilli()})
	if err != nil || len(listed.GetRuns()) != 2 {
		t.Fatalf("ListRunsToRecover = %v, %v, want two runs", listed, err)
	}
	owners := map[string]string{}
	for _, r := range listed.GetRuns() {
		owners[r.GetRunId()] = r.GetLeaseOwner()
	}
	if owners[id] != "host\uFFFD" || owners[next] != "host:1" {
		t.Errorf("ListRunsToRecover shows the owners %q", owners)
	}
}
