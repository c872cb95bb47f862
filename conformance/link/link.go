// Package link is a TCP proxy on the loopback for tests that harm the network
// between a program and its server. It knows no protocol: what the program sends
// in one go is a request to it, what the server sends in one go is an answer.
//
// It is one more of its kind, where toxiproxy and others would do for delays and
// cuts, because two faults that matter to a store need what those do not offer:
// to learn that an answer was thrown away after the server gave it (a test that
// guesses from the time proves nothing), and to keep a request in flight for
// longer than its sender lives, so that the server gets it late.
package link

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Link passes TCP connections on to a target. All methods are safe for
// concurrent use. Harms add up until Reset.
type Link struct {
	listener net.Listener
	life     context.Context // of its connections
	end      context.CancelFunc
	running  sync.WaitGroup

	state   // of what follows
	target  string
	closed  bool
	pairs   map[*pair]struct{}
	dropped int
	delay   time.Duration
	cut     bool
	harm    // of connections to come
}

// harm is what happens to a connection.
type harm struct {
	black bool
	drop  count
	hold  count
}

// count is how many pieces pass before the harm begins. The zero count is no
// harm.
type count struct {
	on   bool
	pass int
}

// hit counts one piece, and reports whether it is harmed.
func (c *count) hit() bool {
	if c.on && c.pass > 0 {
		c.pass--
		return false
	}
	return c.on
}

// New listens on a free port of 127.0.0.1 and passes what comes on to target, a
// host:port. The link outlives ctx: it ends by Close.
func New(ctx context.Context, target string) (*Link, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", target, err)
	}
	l := &Link{listener: listener, target: target, state: newState(), pairs: map[*pair]struct{}{}}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	l.running.Go(l.accept)
	return l, nil
}

// Address is where the link listens: the host:port to give to the program.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Retarget passes connections that are still to come on to another host:port,
// for a server that came back elsewhere.
func (l *Link) Retarget(addr string) {
	l.change(func() { l.target = addr })
}

// Delay holds up every piece that arrives from now on, both ways, by d.
func (l *Link) Delay(d time.Duration) {
	l.change(func() { l.delay = d })
}

// Cut resets all connections, and those that come, until Reset.
func (l *Link) Cut() {
	l.change(func() {
		l.cut = true
		l.kill(func(*pair) bool { return true })
	})
}

// Blackhole keeps connections open and accepts new ones, and passes nothing
// until Reset. Reset resets the connections that were in it, and what they held is
// lost, as after a partition.
func (l *Link) Blackhole() {
	l.harms(func(h *harm) { h.black = true })
}

// DropReplies throws away what the server answers, until Reset: on each
// connection, those to come included, as many answers pass as after says, the
// next is dropped and the connection reset. Requests pass. Dropped counts anew.
func (l *Link) DropReplies(after int) {
	l.harms(func(h *harm) {
		h.drop = count{true, after}
		l.dropped = 0
	})
}

// Hold keeps requests in flight until Reset: on each connection, those to come
// included, as many pieces pass as after says, and those behind them are read and
// not passed on. Reset passes them on, whether or not their sender still lives;
// the connection to the server stays open until they are answered. Answers pass.
func (l *Link) Hold(after int) {
	l.harms(func(h *harm) { h.hold = count{true, after} })
}

// DropClientSide ends the program's side of every connection now. Requests that Hold has
// kept stay in flight until Reset; connections without any are reset. New
// connections pass: the program can repeat its request while a copy is in flight.
func (l *Link) DropClientSide() {
	l.change(func() {
		l.hold = count{}
		l.kill(func(p *pair) bool { return !p.late })
		for p := range l.pairs {
			reset(p.client)
		}
	})
}

// Reset ends all harm.
func (l *Link) Reset() {
	l.change(func() {
		l.kill(func(p *pair) bool { return p.black })
		l.harm, l.delay, l.cut = harm{}, 0, false
		for p := range l.pairs {
			p.harm = harm{}
		}
	})
}

// Dropped is how many answers were dropped since DropReplies was called.
func (l *Link) Dropped() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// AwaitDropped waits until n answers were dropped since DropReplies was called.
func (l *Link) AwaitDropped(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return l.dropped >= n })
}

// AwaitHeld waits until requests of n connections are held.
func (l *Link) AwaitHeld(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return l.unanswered() >= n })
}

// AwaitAnswered waits until every connection whose requests were held was
// answered or closed by the server. It makes sense after Reset.
func (l *Link) AwaitAnswered(ctx context.Context) error {
	return l.await(ctx, func() bool { return l.unanswered() == 0 })
}

func (l *Link) unanswered() (n int) {
	for p := range l.pairs {
		if p.late {
			n++
		}
	}
	return n
}

// Close resets all connections and waits for the link to end.
func (l *Link) Close() error {
	err := l.listener.Close()
	l.change(func() {
		l.closed = true
		l.kill(func(*pair) bool { return true })
	})
	l.end()
	l.running.Wait()
	return err
}

// harms does the same to the connections there are and to those to come.
func (l *Link) harms(do func(h *harm)) {
	l.change(func() {
		do(&l.harm)
		for p := range l.pairs {
			do(&p.harm)
		}
	})
}

// kill resets connections. Its caller has the lock.
func (l *Link) kill(which func(p *pair) bool) {
	for p := range l.pairs {
		if which(p) {
			p.kill()
		}
	}
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.change(func() {
			if l.cut || l.closed {
				reset(client)
				return
			}
			p := &pair{link: l, client: client, harm: l.harm}
			l.pairs[p] = struct{}{}
			l.running.Go(p.run)
		})
	}
}

// reset closes a connection so that its other end is told of an error.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
