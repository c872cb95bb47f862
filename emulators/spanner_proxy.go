package emulators

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

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// spannerProxy is the server that clients connect to. The emulator behind it may be replaced.
type spannerProxy struct {
	gate    *spannerGate
	backend atomic.Pointer[spannerBackend]

	// ctx ends with the proxy; it bounds calls that outlive their senders.
	ctx    context.Context
	cancel context.CancelFunc

	server   *grpc.Server
	listener net.Listener
	running  sync.WaitGroup
}

func newSpannerProxy() *spannerProxy {
	p := &spannerProxy{gate: newSpannerGate()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// use passes calls to another emulator from now on.
func (p *spannerProxy) use(b *spannerBackend) { p.backend.Store(b) }

// listen starts serving clients.
func (p *spannerProxy) listen(ctx context.Context) (err error) {
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

func (p *spannerProxy) address() string { return p.listener.Addr().String() }

// stop ends all calls and waits for them.
func (p *spannerProxy) stop() {
	p.cancel()
	p.gate.close()
	if p.server != nil {
		p.server.Stop()
	}
	p.running.Wait()
}

// handle applies the faults that match an RPC and then passes the RPC to the emulator.
func (p *spannerProxy) handle(_ any, down grpc.ServerStream) error {
	a := newSpannerRPC(down)
	if err := down.RecvMsg(&a.request); err != nil {
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "an RPC without a request")
		}
		return err
	}
	method, _ := grpc.MethodFromServerStream(down)
	req, err := decodeSpanner(method, a.request)
	if err != nil {
		return err
	}
	b := p.backend.Load()
	call := SpannerCall{Method: path.Base(method), Database: spannerDatabaseOf(req), Request: req, ReadWrite: b.isReadWrite(req)}
	call.Metadata, _ = metadata.FromIncomingContext(down.Context())
	defer func() { a.cancel() }()
	for _, f := range p.gate.match(call) {
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
func (p *spannerProxy) applyFault(a *spannerRPC, f *SpannerFault, b *spannerBackend, call SpannerCall) (done bool, err error) {
	switch f.kind {
	case spannerFaultHold:
		a.detach(p.ctx)
		<-f.stopped
	case spannerFaultDelay:
		a.detach(p.ctx)
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.stopped:
		}
	case spannerFaultAbort:
		if b.abort(call.Request) {
			return true, spannerAborted("a fault makes the emulator abort %s", call.Method)
		}
	case spannerFaultRefuse:
		return true, status.Errorf(f.code, "a fault makes the emulator refuse %s", call.Method)
	case spannerFaultDropReply:
		a.detach(p.ctx)
		a.dropReply = true
	case spannerFaultSwallowReply:
		a.detach(p.ctx)
		a.dropReply, a.swallowUntil = true, f.stopped
	case spannerFaultBreakStream:
		a.breakAfter = f.after
	}
	return false, nil
}
