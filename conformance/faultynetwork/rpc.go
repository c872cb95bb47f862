package faultynetwork

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// RPC is the counterpart of Link for gRPC: a proxy on the loopback between a program and its
// server. Many RPCs share one connection, so the bytes that the program sends in one go have no
// meaning. Here a request is the first message of an RPC, with everything that follows it, and the
// answer is everything that the server sends to it. A fault hits an RPC as a whole. Connections are
// reset as by Link, with all RPCs in flight on them.
//
// An RPC whose program sends several messages in turn with the answers passes, but faults apply to
// its first message only.
type RPC struct {
	listener net.Listener
	server   *grpc.Server
	up       *grpc.ClientConn
	only     string
	running  sync.WaitGroup

	state   // guards what follows
	closed  bool
	conns   map[*rpcConn]struct{}
	late    map[*call]struct{} // held, and not answered yet
	dropped int
	delay   time.Duration
	cut     bool
	harm    // faults of future connections
}

// RPCOptions adjusts an RPC; nil means the defaults.
type RPCOptions struct {
	// Only is a key of request metadata. DropReplies and Hold apply to RPCs with that key and let
	// all others pass, because a program's background RPCs share the connections of its callers.
	// Empty means all RPCs.
	Only string
}

// NewRPC listens on a free port of 127.0.0.1 and forwards RPCs to target, a host:port where a
// server speaks gRPC without TLS. The link outlives ctx and ends at Close.
func NewRPC(ctx context.Context, target string, opts *RPCOptions) (*RPC, error) {
	if opts == nil {
		opts = &RPCOptions{}
	}
	up, err := grpc.NewClient("passthrough:///"+target, grpcproxy.DialOptions()...)
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", target, err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("link to %s: %w", target, err), up.Close())
	}
	l := &RPC{
		listener: listener, up: up, only: opts.Only,
		state: newState(), conns: map[*rpcConn]struct{}{}, late: map[*call]struct{}{},
	}
	l.server = grpc.NewServer(append(grpcproxy.ServerOptions(),
		grpc.ForceServerCodec(grpcproxy.Frames()),
		grpc.Creds(connCredentials{insecure.NewCredentials()}),
		grpc.UnknownServiceHandler(grpcproxy.Handler(up)),
		grpc.ChainStreamInterceptor(l.intercept),
	)...)
	l.running.Go(func() { _ = l.server.Serve(rpcListener{listener, l}) }) // returns when the server is stopped
	return l, nil
}

// Address returns the host:port where the link listens.
func (l *RPC) Address() string { return l.listener.Addr().String() }

// Delay delays every RPC that arrives from now on, and its answer, by d. The early end of an RPC is
// delayed too, so its request still reaches the server.
func (l *RPC) Delay(d time.Duration) {
	l.change(func() { l.delay = d })
}

// Cut resets all open and future connections, until Reset. RPCs in flight fail for the program, and
// are cancelled at the server if they have reached it.
func (l *RPC) Cut() {
	l.change(func() {
		l.cut = true
		for c := range l.conns {
			l.kill(c)
		}
	})
}

// Blackhole keeps connections open, accepts new ones, and passes no byte until Reset. Reset resets
// the connections that were in the black hole, and the bytes that they held are lost, as after a
// partition.
func (l *RPC) Blackhole() {
	l.harms(func(h *harm) { h.black = true })
}

// DropReplies drops answers until Reset: on each connection, open or future, the answers to after
// RPCs pass. The next RPC runs to its end at the server; then its answer is dropped and the
// connection reset. The count of Dropped starts again at 0.
func (l *RPC) DropReplies(after int) {
	l.harms(func(h *harm) {
		h.drop = count{true, after}
		l.dropped = 0
	})
}

// Hold keeps RPCs in flight until Reset: on each connection, open or future, after RPCs pass, and
// the later ones do not reach the server. Reset forwards them, even if their sender has ended or no
// longer waits.
func (l *RPC) Hold(after int) {
	l.harms(func(h *harm) { h.hold = count{true, after} })
}

// DropClientSide resets every connection now and cancels its RPCs, except those that Hold keeps:
// they stay in flight until Reset. New connections pass, so the program can repeat its RPC while a
// copy is in flight.
func (l *RPC) DropClientSide() {
	l.change(func() {
		l.hold = count{}
		for c := range l.conns {
			for call := range c.calls {
				if !call.late {
					call.abort()
				}
			}
			l.reset(c)
		}
	})
}

// Reset ends all faults.
func (l *RPC) Reset() {
	l.change(func() {
		for c := range l.conns {
			if c.black {
				l.kill(c)
			}
			c.harm = harm{}
		}
		for call := range l.late {
			call.held = false
		}
		l.harm, l.delay, l.cut = harm{}, 0, false
	})
}

// Dropped returns how many answers were dropped since the last call of DropReplies.
func (l *RPC) Dropped() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// AwaitDropped waits until n answers were dropped since the last call of DropReplies.
func (l *RPC) AwaitDropped(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return l.dropped >= n })
}

// AwaitHeld waits until RPCs of n connections are held.
func (l *RPC) AwaitHeld(ctx context.Context, n int) error {
	return l.await(ctx, func() bool {
		conns := map[*rpcConn]struct{}{}
		for call := range l.late {
			conns[call.conn] = struct{}{}
		}
		return len(conns) >= n
	})
}

// AwaitAnswered waits until the server has answered every RPC that was held. Call it after Reset.
func (l *RPC) AwaitAnswered(ctx context.Context) error {
	return l.await(ctx, func() bool { return len(l.late) == 0 })
}

// Close resets all connections and waits until the link's goroutines have ended.
func (l *RPC) Close() error {
	l.change(func() {
		l.closed = true
		for c := range l.conns {
			l.kill(c)
		}
		for call := range l.late {
			call.abort()
		}
	})
	l.server.Stop()
	l.running.Wait()
	return l.up.Close()
}

// harms applies do to the faults of all open and future connections.
func (l *RPC) harms(do func(h *harm)) {
	l.change(func() {
		do(&l.harm)
		for c := range l.conns {
			do(&c.harm)
		}
	})
}
