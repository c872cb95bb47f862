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

	"github.com/tapestore/tapestore/emulators/forward"
)

// spannerProxy is what clients connect to. What stands behind it may be replaced.
type spannerProxy struct {
	gate    *spannerGate
	backend atomic.Pointer[spannerBackend]

	// life ends with the proxy: calls that outlive their senders don't outlive it.
	life context.Context
	end  context.CancelFunc

	server   *grpc.Server
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	under map[string]int // RPCs under way, by database
}

func newSpannerProxy() *spannerProxy {
	p := &spannerProxy{gate: newSpannerGate(), under: map[string]int{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// use passes calls to an emulator from now on.
func (p *spannerProxy) use(b *spannerBackend) { p.backend.Store(b) }

// listen lets clients in.
func (p *spannerProxy) listen(ctx context.Context) (err error) {
	var listen net.ListenConfig
	if p.listener, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	p.server = grpc.NewServer(append(forward.ServerOptions(),
		grpc.ForceServerCodec(forward.Frames()),
		grpc.UnknownServiceHandler(p.handle))...)
	p.running.Go(func() { _ = p.server.Serve(p.listener) }) // until it is stopped
	return nil
}

func (p *spannerProxy) address() string { return p.listener.Addr().String() }

// stop ends all calls and waits for that.
func (p *spannerProxy) stop() {
	p.end()
	p.gate.close()
	if p.server != nil {
		p.server.Stop()
	}
	p.running.Wait()
}

// handle passes one RPC, as its faults want it.
func (p *spannerProxy) handle(_ any, down grpc.ServerStream) error {
	a := newSpannerAnswer(down)
	if err := down.RecvMsg(&a.first); err != nil {
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "an RPC without a request")
		}
		return err
	}
	method, _ := grpc.MethodFromServerStream(down)
	req, err := decodeSpanner(method, a.first)
	if err != nil {
		return err
	}
	b := p.backend.Load()
	call := SpannerCall{Method: path.Base(method), Database: spannerDatabaseOf(req), Request: req, ReadWrite: b.isReadWrite(req)}
	call.Metadata, _ = metadata.FromIncomingContext(down.Context())
	defer func() { a.cancel() }()
	defer p.enter(call.Database)()
	for _, f := range p.gate.meet(call) {
		if done, err := p.harm(a, f, b, call); done {
			return err
		}
	}
	if p.life.Err() != nil {
		return status.Error(codes.Unavailable, "the emulator is closed")
	}
	b = p.backend.Load() // the emulator may be another one by now
	return a.finish(b.carryOut(a, method, req))
}

// harm does what a fault does before the emulator hears of an RPC; done means that it
// never will.
func (p *spannerProxy) harm(a *spannerAnswer, f *SpannerFault, b *spannerBackend, call SpannerCall) (done bool, err error) {
	switch f.does {
	case spannerHolds:
		a.detach(p.life)
		<-f.ended
	case spannerDelays:
		a.detach(p.life)
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.ended:
		}
	case spannerAborts:
		if b.abort(call.Request) {
			return true, spannerAborted("the emulator was told to abort %s", call.Method)
		}
	case spannerRefuses:
		return true, status.Errorf(f.code, "the emulator was told to refuse %s", call.Method)
	case spannerDrops:
		a.detach(p.life)
		a.lost = true
	case spannerSwallows:
		a.detach(p.life)
		a.lost, a.swallowed = true, f.ended
	case spannerBreaks:
		a.breakAfter = f.after
	}
	return false, nil
}
