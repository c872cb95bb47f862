package fencegrpc_test

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/lease"
)

// A server checks every call but those that only read.
func ExampleUnaryServerInterceptor() {
	checker, err := fence.NewMemory(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	opts := &fencegrpc.Options{
		Unfenced: func(method string) bool { return strings.HasPrefix(method, "/grpc.health.v1.Health/") },
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(fencegrpc.UnaryServerInterceptor(checker, opts)),
		grpc.ChainStreamInterceptor(fencegrpc.StreamServerInterceptor(checker, opts)),
	)
	defer server.Stop()
}

// The holder of a lease presents its token with each call that it makes with this context.
func ExampleWithFence() {
	conn, err := grpc.NewClient("dns:///bank:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(fencegrpc.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(fencegrpc.StreamClientInterceptor()),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	pay := func(ctx context.Context, held *lease.Held) error { // a lease.Work
		ctx = fencegrpc.WithFence(ctx, "account/7", held.Lease().Token)
		return conn.Invoke(ctx, "/bank.Bank/Pay", new(emptypb.Empty), new(emptypb.Empty)) // ErrFenced: replaced
	}
	_ = pay
}
