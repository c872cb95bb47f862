// Package grpcproxy is a transparent gRPC proxy: it passes every RPC on unchanged, from a server on
// the loopback interface to another server. The emulators, and networks to which tests apply
// faults, are put between client and server with it.
package grpcproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // a client may compress its messages
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Frame is one message of an RPC as on the wire, uncompressed.
type Frame []byte

// frames is the codec of Frames. It has the name of the messages' own codec, because gRPC sends the
// name to the other side.
type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) ([]byte, error) {
	f, ok := v.(*Frame)
	if !ok {
		return nil, fmt.Errorf("a %T is no frame", v)
	}
	return *f, nil
}

func (frames) Unmarshal(data []byte, v any) error {
	f, ok := v.(*Frame)
	if !ok {
		return fmt.Errorf("a %T is no frame", v)
	}
	*f = data
	return nil
}

// Frames returns the codec with which a server receives messages of any type as Frames: pass it to
// grpc.ForceServerCodec, together with Handler.
func Frames() encoding.Codec { return frames{} }

// DialOptions returns the options of the connection that Handler passes RPCs to.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), // the environment's proxies are not for the loopback
		grpc.WithConnectParams(grpc.ConnectParams{ // reconnect fast: waiting for a server is the client's decision, not the proxy's
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second, // gRPC's default: a handshake on a busy machine can take seconds
		}),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	}
}

// ServerOptions returns the options of a server that leaves all limits to the server behind it:
// message sizes, and how often a client may send keepalive pings.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // Stop returns when all handlers have returned
	}
}

// Handler returns a handler for grpc.UnknownServiceHandler that passes every RPC to another server
// and returns its replies: messages, metadata, deadlines, statuses with their details.
//
// Handler receives the first message of an RPC before it calls the other server, and asks for the
// stream's context after that. So an interceptor can hold the RPC up and replace its context.
//
// Existing proxy packages were not used: they choose the server before they have seen a message,
// and the little that is needed here is not worth a dependency.
func Handler(to *grpc.ClientConn) grpc.StreamHandler {
	return func(_ any, down grpc.ServerStream) error {
		var first Frame
		failed := down.RecvMsg(&first)
		if failed != nil && !errors.Is(failed, io.EOF) {
			return failed
		}
		ctx, cancel := context.WithCancel(outgoing(down.Context()))
		defer cancel()
		method, _ := grpc.MethodFromServerStream(down)
		up, err := to.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(frames{}))
		if err != nil {
			return err
		}
		if failed == nil {
			if err := up.SendMsg(&first); err != nil && !errors.Is(err, io.EOF) { // else RecvMsg returns the reason
				return err
			}
		}
		go func() {
			if failed == nil && !passRequests(down, up) {
				cancel()
				return
			}
			_ = up.CloseSend() // passAnswers reports a failure
		}()
		return passAnswers(up, down)
	}
}

// passRequests passes on the client's messages after the first. It reports whether the client's
// side of the stream has ended normally.
func passRequests(down grpc.ServerStream, up grpc.ClientStream) (whole bool) {
	for {
		var f Frame
		if err := down.RecvMsg(&f); err != nil {
			return errors.Is(err, io.EOF)
		}
		if up.SendMsg(&f) != nil { // the server has answered already
			return true
		}
	}
}

// passAnswers passes on the server's header, messages, trailer and status.
func passAnswers(up grpc.ClientStream, down grpc.ServerStream) error {
	if header, err := up.Header(); err == nil && header != nil {
		if err := down.SendHeader(plain(header)); err != nil {
			return err
		}
	}
	for {
		var f Frame
		err := up.RecvMsg(&f)
		if err == nil {
			err = down.SendMsg(&f)
			if err == nil {
				continue
			}
		}
		down.SetTrailer(plain(up.Trailer()))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if _, ok := status.FromError(err); !ok {
			return status.Error(codes.Unavailable, err.Error())
		}
		return err
	}
}

// outgoing returns the context of the RPC to the other server, with the client's metadata.
func outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewOutgoingContext(ctx, plain(md))
}

// plain returns metadata without the keys that belong to one connection.
func plain(md metadata.MD) metadata.MD {
	md = md.Copy()
	for key := range md {
		own := strings.HasPrefix(key, ":") || strings.HasPrefix(key, "grpc-") && !slices.Contains(passed, key)
		if own || key == "content-type" || key == "user-agent" || key == "te" {
			delete(md, key)
		}
	}
	return md
}

// passed lists the metadata keys of gRPC itself that a program may set and read.
var passed = []string{"grpc-tags-bin", "grpc-trace-bin", "grpc-retry-pushback-ms", "grpc-previous-rpc-attempts"}
