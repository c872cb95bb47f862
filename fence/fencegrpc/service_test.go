package fencegrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/runstore"
)

// bank is a service with a unary method and two streams, which pay the payees that they receive.
type bank struct {
	mu    sync.Mutex
	paid  []string
	under []runstore.Token
	// careless makes the stream end without an error where RecvMsg returned one.
	careless bool
	// before is called before each payment, unless it is nil. Its error ends the call.
	before func(ctx context.Context) error
	// collected receives a value for each payee that Collect has received.
	collected chan struct{}
}

const (
	payMethod     = "/test.Bank/Pay"
	payAllMethod  = "/test.Bank/PayAll"
	collectMethod = "/test.Bank/Collect"
)

func (b *bank) pay(ctx context.Context, payee *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	if b.before != nil {
		if err := b.before(ctx); err != nil {
			return nil, err
		}
	}
	p, _ := fence.FromContext(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid = append(b.paid, payee.GetValue())
	b.under = append(b.under, p.Token)
	return payee, nil
}

func (b *bank) payAll(stream grpc.ServerStream) error {
	for {
		payee := new(wrapperspb.StringValue)
		err := stream.RecvMsg(payee)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && b.careless:
			if again := stream.RecvMsg(payee); again == nil {
				return errors.New("a refused stream received a message")
			}
			return nil
		case err != nil:
			return err
		}
		paid, err := b.pay(stream.Context(), payee)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(paid); err != nil {
			return err
		}
	}
}

// collect receives payees to the end, and only then pays them.
func (b *bank) collect(stream grpc.ServerStream) error {
	var payees []*wrapperspb.StringValue
	for {
		payee := new(wrapperspb.StringValue)
		err := stream.RecvMsg(payee)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		payees = append(payees, payee)
		b.collected <- struct{}{}
	}
	for _, payee := range payees {
		if _, err := b.pay(stream.Context(), payee); err != nil {
			return err
		}
	}
	return stream.SendMsg(wrapperspb.String("paid"))
}

var bankService = grpc.ServiceDesc{
	ServiceName: "test.Bank", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Pay",
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			payee := new(wrapperspb.StringValue)
			if err := decode(payee); err != nil {
				return nil, err
			}
			return interceptor(ctx, payee, &grpc.UnaryServerInfo{Server: srv, FullMethod: payMethod}, func(ctx context.Context, req any) (any, error) {
				return srv.(*bank).pay(ctx, req.(*wrapperspb.StringValue))
			})
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName: "PayAll", ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*bank).payAll(stream) },
	}, {
		StreamName: "Collect", ClientStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*bank).collect(stream) },
	}},
}

// client calls a bank.
type client struct{ conn *grpc.ClientConn }

// serve starts a bank behind the interceptors and returns a client with theirs.
func serve(t testing.TB, b *bank, checker fence.Checker, opts *fencegrpc.Options) client {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(fencegrpc.UnaryServerInterceptor(checker, opts)),
		grpc.StreamInterceptor(fencegrpc.StreamServerInterceptor(checker, opts)),
	)
	server.RegisterService(&bankService, b)
	listener := bufconn.Listen(1 << 16)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///bank",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(fencegrpc.UnaryClientInterceptor()),
		grpc.WithStreamInterceptor(fencegrpc.StreamClientInterceptor()),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		wg.Wait()
	})
	return client{conn}
}

func (c client) pay(ctx context.Context, payee string) error {
	return c.conn.Invoke(ctx, payMethod, wrapperspb.String(payee), new(wrapperspb.StringValue))
}

// payAll opens a stream. The returned function pays one payee and waits for the reply.
func (c client) payAll(ctx context.Context) (pay func(payee string) error, err error) {
	stream, err := c.conn.NewStream(ctx, &bankService.Streams[0], payAllMethod)
	if err != nil {
		return nil, err
	}
	return func(payee string) error {
		if err := stream.SendMsg(wrapperspb.String(payee)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return stream.RecvMsg(new(wrapperspb.StringValue)) // has the status after an EOF of SendMsg
	}, nil
}

// payOne opens a stream and pays one payee.
func (c client) payOne(ctx context.Context, payee string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pay, err := c.payAll(ctx)
	if err != nil {
		return err
	}
	return pay(payee)
}

func newMemory(t testing.TB) *fence.Memory {
	t.Helper()
	m, err := fence.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
