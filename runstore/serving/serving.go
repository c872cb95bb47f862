// Package serving sends the name of the operation that an RPC serves to the RPC's server.
//
// Package adapter puts the name into the context of every RPC that serves a caller's operation. It
// stays in the process, unless the handle was opened with [DialOptions]. Tests and the conformance
// harnesses do that, so that a server or a network in between can hold, lose or count the caller's
// RPCs alone, and not those of an adapter's background work.
package serving

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore/adapter"
)

// Header is the metadata key under which DialOptions sends the operation's name.
const Header = "tapestore-op"

// Operation returns the operation that an RPC under ctx serves, or "".
func Operation(ctx context.Context) string { return adapter.Operation(ctx) }

// DialOptions returns options of a connection that sends [Header] with every RPC that serves an
// operation.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(withHeader(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return begin(withHeader(ctx), desc, cc, method, opts...)
		}),
	}
}

func withHeader(ctx context.Context) context.Context {
	operation := Operation(ctx)
	if operation == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, Header, operation)
}
