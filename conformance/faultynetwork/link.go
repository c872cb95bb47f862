// Package faultynetwork is a TCP proxy on the loopback that injects faults into the network between a
// program and its server, for tests. It knows no protocol: the bytes that the program sends in one
// go are a request, and the bytes that the server sends in one go are an answer.
//
// For delays and cuts alone, toxiproxy and others would do. Link exists for two faults that matter
// to a store and that the others do not offer. A test can await that an answer was dropped after
// the server gave it; a test that estimates this by time proves nothing. And a request can be kept
// in flight beyond the life of its sender, so that the server gets it late.
package faultynetwork

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Link forwards TCP connections to a target and injects faults. All methods are safe for concurrent
// use. Faults add up until Reset.
type Link struct {
	listener net.Listener
	life     context.Context // parent context of the connections
	end      context.CancelFunc
	running  sync.WaitGroup

	state   // guards what follows
	target  string
	closed  bool
	pairs   map[*pair]struct{}
	dropped int
	delay   time.Duration
	cut     bool
	harm    // faults of future connections
}

// harm is the set of faults of one connection.
type harm struct {
	black bool
	drop  count
	hold  count
}

// count is the number of pieces that pass before a fault begins. The zero count is no fault.
type count struct {
	on   bool
	pass int
}

// hit counts one piece and reports whether the fault hits it.
func (c *count) hit() bool {
	if c.on && c.pass > 0 {
		c.pass--
		return false
	}
	return c.on
}

// New listens on a free port of 127.0.0.1 and forwards connections to target, a host:port. The link
// outlives ctx and ends at Close.
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

// Address returns the host:port where the link listens.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Retarget forwards future connections to another host:port, for a server that restarted elsewhere.
func (l *Link) Retarget(addr string) {
	l.change(func() { l.target = addr })
}

// Delay delays every piece that arrives from now on, in both directions, by d.
func (l *Link) Delay(d time.Duration) {
	l.change(func() { l.delay = d })
}

// Cut resets all open and future connections, until Reset.
func (l *Link) Cut() {
	l.change(func() {
		l.cut = true
		l.kill(func(*pair) bool { return true })
	})
}

// Blackhole keeps connections open, accepts new ones, and passes nothing until Reset. Reset resets
// the connections that were in the black hole, and the bytes that they held are lost, as after a
// partition.
func (l *Link) Blackhole() {
	l.harms(func(h *harm) { h.black = true })
}

// DropReplies drops answers of the server until Reset: on each connection, open or future, after
// answers pass, and the next one is dropped and the connection reset. Requests pass. The count of
// Dropped starts again at 0.
func (l *Link) DropReplies(after int) {
	l.harms(func(h *harm) {
		h.drop = count{true, after}
		l.dropped = 0
	})
}

// Hold keeps requests in flight until Reset: on each connection, open or future, after pieces pass,
// and the later ones are read and not forwarded. Reset forwards them, even if their sender has
// ended; the connection to the server stays open until they are answered. Answers pass.
func (l *Link) Hold(after int) {
	l.harms(func(h *harm) { h.hold = count{true, after} })
}

// DropClientSide resets the program's side of every connection now. Requests that Hold keeps stay
// in flight until Reset; a connection without any is reset on both sides. New connections pass, so
// the program can repeat its request while a copy is in flight.
func (l *Link) DropClientSide() {
	l.change(func() {
		l.hold = count{}
		l.kill(func(p *pair) bool { return !p.late })
		for p := range l.pairs {
			reset(p.client)
		}
	})
}

// Reset ends all faults.
func (l *Link) Reset() {
	l.change(func() {
		l.kill(func(p *pair) bool { return p.black })
		l.harm, l.delay, l.cut = harm{}, 0, false
		for p := range l.pairs {
			p.harm = harm{}
		}
	})
}

// Dropped returns how many answers were dropped since the last call of DropReplies.
func (l *Link) Dropped() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// AwaitDropped waits until n answers were dropped since the last call of DropReplies.
func (l *Link) AwaitDropped(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return l.dropped >= n })
}

// AwaitHeld waits until requests of n connections are held.
func (l *Link) AwaitHeld(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return l.unanswered() >= n })
}

// AwaitAnswered waits until the server has answered or closed every connection whose requests were
// held. Call it after Reset.
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

// Close resets all connections and waits until the link's goroutines have ended.
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

// harms applies do to the faults of all open and future connections.
func (l *Link) harms(do func(h *harm)) {
	l.change(func() {
		do(&l.harm)
		for p := range l.pairs {
			do(&p.harm)
		}
	})
}

// kill resets the connections that which selects. The caller holds the lock.
func (l *Link) kill(which func(p *pair) bool) {
	for p := range l.pairs {
		if which(p) {
			p.kill()
		}
	}
}

// accept runs a pair for every connection of the program until the listener is closed.
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

// reset closes a connection so that its peer gets an error (a TCP reset).
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
