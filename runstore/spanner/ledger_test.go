package spanner_test

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// sent is an RPC as it leaves the client.
type sent struct {
	method    string
	operation string
	md        metadata.MD
	request   any
}

// ledger lists the RPCs of a handle that serve operations.
type ledger struct {
	mu  sync.Mutex
	all []sent
}

func (l *ledger) note(ctx context.Context, method string, request any) {
	md, _ := metadata.FromOutgoingContext(ctx)
	ends := strings.HasSuffix(method, "/"+rollback) // the client's own: it has no operation
	if serving.Operation(ctx) == "" && !ends || strings.HasSuffix(method, "/CreateSession") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, sent{path.Base(method), serving.Operation(ctx), md, request})
}

// keep makes a handle's connection write the ledger.
func (l *ledger) keep(o *spanner.Options) {
	o.DialOptions = append(o.DialOptions,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			l.note(ctx, method, req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, cc, method, opts...)
			return &notedStream{stream, func(request any) { l.note(ctx, method, request) }}, err
		}))
}

type notedStream struct {
	grpc.ClientStream
	note func(request any)
}

func (s *notedStream) SendMsg(m any) error {
	s.note(m)
	return s.ClientStream.SendMsg(m)
}

// beforeSending returns an option that calls hook with the request of each streaming RPC before the
// handle sends it.
func beforeSending(hook func(request any)) func(*spanner.Options) {
	return func(o *spanner.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := begin(ctx, desc, cc, method, opts...)
				return &notedStream{stream, hook}, err
			}))
	}
}

// during returns the RPCs that f makes.
func (l *ledger) during(f func()) []sent {
	l.mu.Lock()
	l.all = nil
	l.mu.Unlock()
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}
