package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/emulators/forward"
)

// RPC is what Link is, for a program that speaks gRPC: a proxy on the loopback
// between it and its server. Many calls share one connection there, so to count
// what the program sends in one go would mean nothing. Here a request is the first
// message of an RPC, with what follows it, and the answer is all that the server
// says to it. An RPC that is harmed is harmed as a whole; connections are reset as
// by Link, with all RPCs that are under way on them.
//
// An RPC of which the program sends several messages, one after the other's answer,
// passes, but is told apart by its first message only.
type RPC struct {
	listener net.Listener
	server   *grpc.Server
	up       *grpc.ClientConn
	only     string
	running  sync.WaitGroup

	state   // of what follows
	closed  bool
	conns   map[*rpcConn]struct{}
	late    map[*call]struct{} // held, and not answered yet
	dropped int
	delay   time.Duration
	cut     bool
	harm    // of connections to come
}

// RPCOptions adjusts an RPC link; nil means the defaults.
type RPCOptions struct {
	// Only is a key of request metadata. DropReplies and Hold count and harm RPCs
	// that carry it, and let all others pass: what a program does in the
	// background goes over the connections of its callers. Empty means all RPCs.
	Only string
}

// NewRPC listens on a free port of 127.0.0.1 and passes RPCs on to target, a
// host:port where a server speaks gRPC without TLS. The link outlives ctx: it ends
// by Close.
func NewRPC(ctx context.Context, target string, opts *RPCOptions) (*RPC, error) {
	if opts == nil {
		opts = &RPCOptions{}
	}
	up, err := grpc.NewClient("passthrough:///"+target, forward.DialOptions()...)
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
	l.server = grpc.NewServer(append(forward.ServerOptions(),
		grpc.ForceServerCodec(forward.Frames()),
		grpc.Creds(connCredentials{insecure.NewCredentials()}),
		grpc.UnknownServiceHandler(forward.Handler(up)),
		grpc.ChainStreamInterceptor(l.intercept),
	)...)
	l.running.Go(func() { _ = l.server.Serve(rpcListener{listener, l}) }) // until it is stopped
	return l, nil
}

// Address is where the link listens: the host:port to give to the program.
func (l *RPC) Address() string { return l.listener.Addr().String() }

// Delay holds up every RPC that arrives from now on, and its answer, by d. What
// ends an RPC early is held up too: its request reaches the server.
func (l *RPC) Delay(d time.Duration) {
	l.change(func() { l.delay = d })
}

// Cut resets all connections, and those that come, until Reset. RPCs under way fail
// for the program, and are cancelled at the server if they are there already.
func (l *RPC) Cut() {
	l.change(func() {
		l.cut = true
		for c := range l.conns {
			l.kill(c)
		}
	})
}

// Blackhole keeps connections open and accepts new ones, and passes not a byte
// until Reset. Reset resets the connections that were in it, and what they held is
// lost, as after a partition.
func (l *RPC) Blackhole() {
	l.harms(func(h *harm) { h.black = true })
}

// DropReplies throws answers away, until Reset: on each connection, those to come
// included, the answers to as many RPCs pass as after says, the next RPC is run to
// its end at the server, its answer is dropped and the connection reset. Dropped
// counts anew.
func (l *RPC) DropReplies(after int) {
	l.harms(func(h *harm) {
		h.drop = count{true, after}
		l.dropped = 0
	})
}

// Hold keeps RPCs in flight until Reset: on each connection, those to come included,
// as many pass as after says, and those behind them do not reach the server. Reset
// passes them on, whether or not their sender still lives or waits.
func (l *RPC) Hold(after int) {
	l.harms(func(h *harm) { h.hold = count{true, after} })
}

// DropClientSide resets every connection now, and cancels the RPCs on it but those that Hold
// has kept: they stay in flight until Reset. New connections pass: the program can
// repeat its RPC while a copy is in flight.
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

// Reset ends all harm.
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

// Dropped is how many answers were dropped since DropReplies was called.
func (l *RPC) Dropped() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// AwaitDropped waits until n answers were dropped since DropReplies was called.
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

// AwaitAnswered waits until the server has answered every RPC that was held. It
// makes sense after Reset.
func (l *RPC) AwaitAnswered(ctx context.Context) error {
	return l.await(ctx, func() bool { return len(l.late) == 0 })
}

// Close resets all connections and waits for the link to end.
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

// harms does the same to the connections there are and to those to come.
func (l *RPC) harms(do func(h *harm)) {
	l.change(func() {
		do(&l.harm)
		for c := range l.conns {
			do(&c.harm)
		}
	})
}
