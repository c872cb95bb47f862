package tapeserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/peer"

	"github.com/tapestore/tapestore/internal/clientlimit"
)

// listener bounds the number of open connections and keeps track of them.
type listener struct {
	net.Listener
	limits Limits
	log    *slog.Logger
	bounds *clientlimit.Conns

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	broken   bool // connections cannot be accepted; logged once
}

// newListener returns a listener of connections within the limits; name is its name in the log.
func newListener(lis net.Listener, name string, limits Limits, log *slog.Logger) *listener {
	return &listener{Listener: lis, limits: limits, log: log, conns: map[*conn]struct{}{}, bounds: clientlimit.NewConns(clientlimit.ConnsOptions{
		Total: limits.Connections, PerAddress: limits.ConnectionsPerAddress, Listener: name, Log: log,
	})}
}

// Accept returns the next connection within the limit, and closes connections above it.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			l.failed(err)
			return nil, err
		}
		if c := l.add(raw); c != nil {
			return c, nil
		}
		_ = raw.Close()
	}
}

// failed logs the first of consecutive failures to accept, for example when the process has run out
// of file descriptors. gRPC tries again. It ignores that the listener was closed, which Serve
// returns.
func (l *listener) failed(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken && !l.draining {
		l.broken = true
		l.log.Error("cannot accept connections", "error", err)
	}
}

// add registers a connection. It returns nil for a connection over the limit, and while the server
// drains.
func (l *listener) add(raw net.Conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		l.broken = false
		l.log.Info("accepting connections again")
	}
	if l.draining {
		return nil
	}
	release := l.bounds.Admit(raw.RemoteAddr())
	if release == nil {
		return nil
	}
	c := &conn{
		Conn: raw, listener: l, release: release, replies: map[*hold]struct{}{}, ending: map[*call]struct{}{},
		bytes: semaphore.NewWeighted(l.limits.perConnection()),
	}
	l.conns[c] = struct{}{}
	return c
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	c.release()
}

// closeSilent closes every connection without a call so far, now and from now on: gRPC would wait
// for their handshakes. closeAll closes the others too.
func (l *listener) closeSilent() { l.close(func(c *conn) bool { return !c.used() }) }
func (l *listener) closeAll()    { l.close(func(*conn) bool { return true }) }

func (l *listener) close(which func(*conn) bool) {
	l.mu.Lock()
	l.draining = true
	var closing []*conn
	for c := range l.conns {
		if which(c) {
			closing = append(closing, c)
		}
	}
	l.mu.Unlock()
	for _, c := range closing {
		_ = c.Close()
	}
}

// conn is one client's connection, with its share of the bytes in flight.
type conn struct {
	net.Conn
	listener *listener
	release  func() // ends the connection's count
	bytes    *semaphore.Weighted

	mu      sync.Mutex
	called  bool
	closed  bool
	replies map[*hold]struct{} // the holds of replies that the client has not taken
	ending  map[*call]struct{} // the calls whose handlers have ended before the client had taken their messages
	grants  grants
}

// unread is the state of a call's messages; guarded by conn.mu.
type unread struct {
	messages int         // that the client has not taken
	late     *time.Timer // while the call is in conn.ending
	until    time.Time   // when late fires at the latest
	reset    bool        // the stream was reset: the client takes nothing more
}

// connAddr is a peer address that carries its connection, so that a call can find it.
type connAddr struct {
	net.Addr
	conn *conn
}

// RemoteAddr returns the peer's address.
func (c *conn) RemoteAddr() net.Addr { return connAddr{Addr: c.Conn.RemoteAddr(), conn: c} }

// connOf returns the connection of a call.
func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			return a.conn
		}
	}
	panic("tapeserver: a call on a connection that its listener did not accept")
}

func (c *conn) use() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.called = true
}

func (c *conn) used() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.called
}

// Write writes to the client. If the client does not take what is written within SendTimeout, at most a
// buffer of 32 KiB, the connection is closed.
func (c *conn) Write(data []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.listener.limits.SendTimeout)) // fails on a closed connection, as Write does
	n, err := c.Conn.Write(data)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		c.late()
	}
	return n, err
}

// late closes the connection of a client that left something unread for SendTimeout.
func (c *conn) late() {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	c.listener.log.Warn("closing the connection of a client that does not read",
		"peer", c.Conn.RemoteAddr().String(), "limit", "SendTimeout", "value", c.listener.limits.SendTimeout)
	_ = c.Close()
}

// Close closes the connection. It releases the holds of its unread replies, and ends the calls that
// wait for the client to take them.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	replies, ending := c.replies, c.ending
	c.replies, c.ending = nil, nil
	for h := range replies {
		h.late.Stop()
	}
	for x := range ending {
		x.unread.late.Stop()
	}
	c.mu.Unlock()
	for h := range replies {
		h.release()
	}
	for x := range ending {
		x.leave()
	}
	c.grants.close()
	c.listener.remove(c)
	return c.Conn.Close()
}

// await keeps the hold of a reply that was handed to the connection until the client has taken the
// reply. If the client does not take it within timeout, the connection is closed, or the stream ends if the
// reply is a stream's; ended closes the connection of a client that does not take the rest either.
func (c *conn) await(x *call, h *hold, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		h.release()
		return
	}
	c.replies[h] = struct{}{}
	h.call = x
	late := c.late
	if x.late != nil {
		late = x.isLate
	}
	h.late = time.AfterFunc(timeout, late)
}

// taken releases a hold that await keeps.
func (c *conn) taken(h *hold) {
	c.mu.Lock()
	delete(c.replies, h)
	late := h.late
	c.mu.Unlock()
	if late != nil {
		late.Stop()
	}
	h.release()
}

// sent counts a message of a call that is handed to the connection.
func (c *conn) sent(x *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.unread.messages++
}

// took counts a message that the client has taken, or whose stream was reset.
func (c *conn) took(x *call) {
	c.mu.Lock()
	x.unread.messages--
	_, waits := c.ending[x]
	switch {
	case waits && x.unread.messages == 0:
		delete(c.ending, x)
		x.unread.late.Stop()
	case waits:
		waits = false
		if left := min(c.listener.limits.SendTimeout, time.Until(x.unread.until)); x.unread.late.Stop() {
			x.unread.late.Reset(left)
		}
	}
	c.mu.Unlock()
	if waits {
		x.leave()
	}
}

// reset ends the counts of a call whose stream was reset.
func (c *conn) reset(x *call) {
	var unread []*hold
	c.mu.Lock()
	x.unread.reset = true
	_, waits := c.ending[x]
	if waits {
		delete(c.ending, x)
		x.unread.late.Stop()
	}
	for h := range c.replies {
		if h.call == x {
			unread = append(unread, h)
		}
	}
	c.mu.Unlock()
	for _, h := range unread {
		c.taken(h)
	}
	if waits {
		x.leave()
	}
}

// maxSendTimeouts is how many SendTimeouts a client may need for what is left of a call that has ended, if
// it takes something within each: 10, so that a slow client gets the status of its stream.
const maxSendTimeouts = 10

// ended ends a call whose handler has ended, as soon as the client has taken its messages. If the client
// takes none of them for SendTimeout, or not all within maxSendTimeouts, the connection is closed.
func (c *conn) ended(x *call) {
	c.mu.Lock()
	waits := x.unread.messages > 0 && !x.unread.reset && !c.closed
	if waits {
		c.ending[x] = struct{}{}
		timeout := c.listener.limits.SendTimeout
		x.unread.late, x.unread.until = time.AfterFunc(timeout, c.late), time.Now().Add(maxSendTimeouts*timeout)
	}
	c.mu.Unlock()
	if !waits {
		x.leave()
	}
}
