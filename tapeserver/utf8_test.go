package tapeserver_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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
