package spanner

import (
	"context"
	"errors"
	"io"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators/internal/fault"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// proxy is the server that clients connect to. The emulator behind it may be replaced.
type proxy struct {
	gate    *fault.Gate[Call, action]
	backend atomic.Pointer[backend]

	// ctx ends with the proxy; it bounds calls that outlive their senders.
	ctx    context.Context
	cancel context.CancelFunc

	server   *grpc.Server
	listener net.Listener
	running  sync.WaitGroup
}

func newProxy() *proxy {
	p := &proxy{gate: fault.NewGate[Call, action]()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// use passes calls to another emulator from now on.
func (p *proxy) use(b *backend) { p.backend.Store(b) }

// listen starts serving clients.
func (p *proxy) listen(ctx context.Context) (err error) {
	var listen net.ListenConfig
	if p.listener, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	p.server = grpc.NewServer(append(grpcproxy.ServerOptions(),
		grpc.ForceServerCodec(grpcproxy.Frames()),
		grpc.UnknownServiceHandler(p.handle))...)
	p.running.Go(func() { _ = p.server.Serve(p.listener) }) // until it is stopped
	return nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// stop ends all calls and waits for them.
func (p *proxy) stop() {
	p.cancel()
	p.gate.Close()
	if p.server != nil {
		p.server.Stop()
	}
	p.running.Wait()
}

// handle applies the faults that match an RPC and then passes the RPC to the emulator.
func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	a := newRPC(down)
	if err := down.RecvMsg(&a.request); err != nil {
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "an RPC without a request")
		}
		return err
	}
	method, _ := grpc.MethodFromServerStream(down)
	req, err := decode(method, a.request)
	if err != nil {
		return err
	}
	b := p.backend.Load()
	call := Call{Method: path.Base(method), Database: databaseOf(req), Request: req, ReadWrite: b.isReadWrite(req)}
	call.Metadata, _ = metadata.FromIncomingContext(down.Context())
	defer func() { a.cancel() }()
	for _, f := range p.gate.Match(call.Method, call) {
		if done, err := p.applyFault(a, f, b, call); done {
			return err
		}
	}
	if p.ctx.Err() != nil {
		return status.Error(codes.Unavailable, "the emulator is closed")
	}
	b = p.backend.Load() // the emulator may have been replaced meanwhile
	return a.finish(b.execute(a, method, req))
}

// applyFault applies a fault to an RPC before the emulator gets it. done means that the emulator
// never gets it, and the client gets err.
func (p *proxy) applyFault(a *rpc, f *fault.Fault[Call, action], b *backend, call Call) (done bool, err error) {
	switch f.Action.kind {
	case faultHold:
		a.detach(p.ctx)
		<-f.Stopped
	case faultDelay:
		a.detach(p.ctx)
		timer := time.NewTimer(f.Action.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.Stopped:
		}
	case faultAbort:
		if b.abort(call.Request) {
			return true, aborted("a fault makes the emulator abort %s", call.Method)
		}
	case faultRefuse:
		return true, status.Errorf(f.Action.code, "a fault makes the emulator refuse %s", call.Method)
	case faultDropReply:
		a.detach(p.ctx)
		a.dropReply = true
	case faultSwallowReply:
		a.detach(p.ctx)
		a.dropReply, a.swallowUntil = true, f.Stopped
	case faultBreakStream:
		a.breakAfter = f.Action.after
	}
	return false, nil
}
