package faultynetwork_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tapestore/tapestore/conformance/faultynetwork"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// teller is a gRPC server of a few methods. Each method records its request when it is done.
type teller struct {
	addr string
	told chan string
	// met receives the context of every call that begins; release, if not nil, lets it continue.
	met     chan context.Context
	release chan struct{}
}

func newTeller(t *testing.T) *teller {
	t.Helper()
	s := &teller{told: make(chan string, 1000)}
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Teller",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: s.say}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Spell", Handler: s.spell, ServerStreams: true},
			{StreamName: "Talk", Handler: s.talk, ServerStreams: true, ClientStreams: true},
		},
	}, s)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return s
}

// say answers "you said …", with a header and a trailer that repeat the client's "greeting". A text
// that begins with "fail" yields an error with details.
func (s *teller) say(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var text wrapperspb.StringValue
	if err := decode(&text); err != nil {
		return nil, err
	}
	if s.met != nil {
		s.met <- ctx
	}
	if s.release != nil {
		<-s.release
	}
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetHeader(ctx, metadata.MD{"head": md.Get("greeting")})
	_ = grpc.SetTrailer(ctx, metadata.MD{"tail": md.Get("greeting")})
	s.told <- text.Value
	if strings.HasPrefix(text.Value, "fail") {
		st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Reason: text.Value})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return wrapperspb.String("you said " + text.Value), nil
}

// spell answers with the letters of a text, one by one.
func (s *teller) spell(_ any, stream grpc.ServerStream) error {
	var text wrapperspb.StringValue
	if err := stream.RecvMsg(&text); err != nil {
		return err
	}
	for _, letter := range text.Value {
		if err := stream.SendMsg(wrapperspb.String(string(letter))); err != nil {
			return err
		}
	}
	s.told <- text.Value
	return nil
}

// talk sends back each message, and "bye" after the client has ended.
func (s *teller) talk(_ any, stream grpc.ServerStream) error {
	for {
		var text wrapperspb.StringValue
		if err := stream.RecvMsg(&text); err != nil {
			return stream.SendMsg(wrapperspb.String("bye"))
		}
		if err := stream.SendMsg(&text); err != nil {
			return err
		}
	}
}

func newRPC(t *testing.T, s *teller, opts *faultynetwork.RPCOptions) *faultynetwork.RPC {
	t.Helper()
	l, err := faultynetwork.NewRPC(t.Context(), s.addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// client is a program with one connection.
type client struct {
	t    *testing.T
	conn *grpc.ClientConn
}

func newClient(t *testing.T, l *faultynetwork.RPC) client {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+l.Address(), append(grpcproxy.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{t, conn}
}

func (c client) bounded() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	c.t.Cleanup(cancel)
	return ctx
}

func (c client) try(ctx context.Context, text string, opts ...grpc.CallOption) (string, error) {
	var answer wrapperspb.StringValue
	err := c.conn.Invoke(ctx, "/test.Teller/Say", wrapperspb.String(text), &answer, opts...)
	return answer.Value, err
}

// says fails the test unless the server answers.
func (c client) says(text string) {
	c.t.Helper()
	if got, err := c.try(c.bounded(), text, grpc.WaitForReady(true)); err != nil || got != "you said "+text {
		c.t.Fatalf("say %q: got %q, %v", text, got, err)
	}
}

// disconnected waits until the client knows that its connection has ended. An RPC that it sends
// before that is lost with the connection.
func (c client) disconnected() {
	c.t.Helper()
	ctx := c.bounded()
	for c.conn.GetState() == connectivity.Ready {
		if !c.conn.WaitForStateChange(ctx, connectivity.Ready) {
			c.t.Fatal("the client still has its connection")
		}
	}
}

// fails fails the test unless the call ends with a code.
func (c client) fails(ctx context.Context, text string, want codes.Code, opts ...grpc.CallOption) {
	c.t.Helper()
	if got, err := c.try(ctx, text, opts...); status.Code(err) != want {
		c.t.Fatalf("say %q: got %q, %v; want %v", text, got, err, want)
	}
}

// saying starts a call and returns the channel of its result.
func (c client) saying(ctx context.Context, text string) (ended <-chan error) {
	done := make(chan error, 1)
	go func() {
		_, err := c.try(ctx, text, grpc.WaitForReady(true))
		done <- err
	}()
	return done
}

// ends fails the test unless the call ends with a code.
func (c client) ends(ended <-chan error, want codes.Code) {
	c.t.Helper()
	select {
	case err := <-ended:
		if status.Code(err) != want {
			c.t.Fatalf("the call ended with %v, want %v", err, want)
		}
	case <-c.bounded().Done():
		c.t.Fatal("the call does not end")
	}
}

// hears fails the test unless the server's next requests are want.
func (s *teller) hears(t *testing.T, want ...string) {
	t.Helper()
	for _, text := range want {
		select {
		case got := <-s.told:
			if got != text {
				t.Fatalf("the server heard %q, want %q", got, text)
			}
		case <-client{t, nil}.bounded().Done():
			t.Fatalf("the server did not hear %q", text)
		}
	}
}

// silent fails the test if the server has received a further request.
func (s *teller) silent(t *testing.T) {
	t.Helper()
	select {
	case got := <-s.told:
		t.Fatalf("the server heard %q", got)
	default:
	}
}
