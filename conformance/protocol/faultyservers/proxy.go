package faultyservers

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// fault is how a proxy changes the calls that it forwards.
type fault struct {
	// unary handles a call; nil forwards it.
	unary func(call) (proto.Message, error)
	// entry reports whether to send an entry of a run's journal; nil sends all.
	entry func(*tapepb.JournalEntry) bool
	// request changes the request of a stream.
	request func(proto.Message)
	// events returns a function that maps each entry of the feed of all runs to what one stream
	// sends; nil sends all.
	events func() func(*tapepb.EventEntry) []*tapepb.EventEntry
	// bare drops the headers of requests.
	bare bool
}

// call is a unary call that a proxy received.
type call struct {
	ctx    context.Context
	method string
	req    proto.Message
	// server is the server behind the proxy.
	server tapepb.TapeClient

	conn *grpc.ClientConn
}

// forward sends the call to the server behind the proxy, with a possibly changed request.
func (c call) forward(req proto.Message) (proto.Message, error) {
	m := descriptor().Methods().ByName(protoreflect.Name(c.method))
	reply := newMessage(m.Output())
	if err := c.conn.Invoke(c.ctx, fmt.Sprintf("/%s/%s", descriptor().FullName(), c.method), req, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

func descriptor() protoreflect.ServiceDescriptor { return tapepb.File_tape_proto.Services().Get(0) }

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // tapepb links all messages of its file
	}
	return m.New().Interface()
}

// startProxy starts a proxy in front of a server until the end of the test, and returns its
// address.
func startProxy(t conformance.T, behind string, f fault) (address string) {
	t.Helper()
	conn, err := grpc.NewClient(behind, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = conn.Close()
		t.Fatalf("proxy: %v", err)
	}
	p := &proxy{conn: conn, fault: f}
	server := grpc.NewServer()
	server.RegisterService(p.service(), nil)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("proxy: %v", err)
		}
		_ = conn.Close()
	})
	return lis.Addr().String()
}

type proxy struct {
	conn  *grpc.ClientConn
	fault fault
}

// service returns Tape's service with forwarding handlers.
func (p *proxy) service() *grpc.ServiceDesc {
	desc := &grpc.ServiceDesc{ServiceName: string(descriptor().FullName()), Metadata: tapepb.Tape_ServiceDesc.Metadata}
	methods := descriptor().Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		name := string(m.Name())
		if m.IsStreamingServer() {
			desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				return p.forwardStream(m, stream)
			}})
			continue
		}
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			req := newMessage(m.Input())
			if err := decode(req); err != nil {
				return nil, err
			}
			c := call{ctx: p.outgoing(ctx), method: name, req: req, server: tapepb.NewTapeClient(p.conn), conn: p.conn}
			if p.fault.unary == nil {
				return c.forward(req)
			}
			return p.fault.unary(c)
		}})
	}
	return desc
}

// outgoing returns the context of a call to the server behind the proxy, with the headers of the
// request.
func (p *proxy) outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	out := metadata.MD{}
	for key, values := range md {
		if strings.HasPrefix(key, "tape-fence-") && !p.fault.bare {
			out[key] = values
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// forwardStream forwards a stream entry by entry.
func (p *proxy) forwardStream(m protoreflect.MethodDescriptor, stream grpc.ServerStream) error {
	req := newMessage(m.Input())
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	if p.fault.request != nil {
		p.fault.request(req)
	}
	send := func(e *tapepb.EventEntry) []*tapepb.EventEntry { return []*tapepb.EventEntry{e} }
	if p.fault.events != nil {
		send = p.fault.events()
	}
	up, err := p.conn.NewStream(p.outgoing(stream.Context()), &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/%s/%s", descriptor().FullName(), m.Name()))
	if err != nil {
		return err
	}
	if err := up.SendMsg(req); err != nil {
		return err
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		reply := newMessage(m.Output())
		if err := up.RecvMsg(reply); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if entry, ok := reply.(*tapepb.JournalEntry); ok && p.fault.entry != nil && !p.fault.entry(entry) {
			continue
		}
		replies := []proto.Message{reply}
		if e, ok := reply.(*tapepb.EventEntry); ok {
			replies = replies[:0]
			for _, e := range send(e) {
				replies = append(replies, e)
			}
		}
		for _, m := range replies {
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
	}
}
