// Package forward passes RPCs on as they are, whatever they say, from a server on the
// loopback to another one. Emulators and networks that tests harm stand in between by it.
package forward

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

// Frame is a message of an RPC as it is on the wire, not compressed.
type Frame []byte

// frames is the codec of Frames. Its name is that of what they hold, since it is
// told to the other side.
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

// Frames is the codec with which a server takes messages as Frames, whatever they
// are: by grpc.ForceServerCodec, beside Handler.
func Frames() encoding.Codec { return frames{} }

// DialOptions are the options of a connection that Handler passes RPCs on by.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), // the environment's proxies are not for the loopback
		grpc.WithConnectParams(grpc.ConnectParams{ // whoever waits out a server's end is the client, not what stands between
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second,
		}),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	}
}

// ServerOptions are the options of a server that leaves all limits to the one behind it:
// those of messages, and of how often a client asks whether it is there.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // Stop returns when nothing of the server runs
	}
}

// Handler is one for grpc.UnknownServiceHandler that passes every RPC on to
// another server, and what that one answers back: messages, metadata, deadlines,
// statuses with their details. The first message of an RPC is taken in before the
// other server hears of it; the stream's context is asked for after that, so that
// an interceptor can hold the RPC up and give it another context.
//
// There are such proxies to import. None of them is needed for this little, and
// their directors choose the server before the message is seen.
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
			if err := up.SendMsg(&first); err != nil && !errors.Is(err, io.EOF) { // else RecvMsg tells why
				return err
			}
		}
		go func() {
			if failed == nil && !passRequests(down, up) {
				cancel()
				return
			}
			_ = up.CloseSend() // a failure shows in the answer
		}()
		return passAnswers(up, down)
	}
}

// passRequests passes on what the client sends behind its first message. It
// reports whether that came to its end.
func passRequests(down grpc.ServerStream, up grpc.ClientStream) (whole bool) {
	for {
		var f Frame
		if err := down.RecvMsg(&f); err != nil {
			return errors.Is(err, io.EOF)
		}
		if up.SendMsg(&f) != nil { // the answer has come already
			return true
		}
	}
}

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

// outgoing is the context of the RPC to the other server.
func outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewOutgoingContext(ctx, plain(md))
}

// plain is metadata without what each connection says for itself.
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

// passed are the names of gRPC's own that a program may set and read.
var passed = []string{"grpc-tags-bin", "grpc-trace-bin", "grpc-retry-pushback-ms", "grpc-previous-rpc-attempts"}
