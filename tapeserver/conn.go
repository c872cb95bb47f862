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
)

// listener bounds the number of open connections and keeps track of them.
type listener struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	full     bool // connections are being refused; logged once
	broken   bool // connections cannot be accepted; logged once
	refused  int64
}

func newListener(lis net.Listener, limits Limits, log *slog.Logger) *listener {
	return &listener{Listener: lis, limits: limits, log: log, conns: map[*conn]struct{}{}}
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
	if len(l.conns) >= l.limits.Connections {
		l.refused++
		if !l.full {
			l.full = true
			l.log.Warn("refusing connections", "limit", "Connections", "value", l.limits.Connections)
		}
		return nil
	}
	c := &conn{
		Conn: raw, listener: l, replies: map[*hold]struct{}{},
		bytes: semaphore.NewWeighted(l.limits.perConnection()),
	}
	l.conns[c] = struct{}{}
	return c
}

// counts returns the number of open connections, and of those that were refused.
func (l *listener) counts() (open, refused int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.conns)), l.refused
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	if l.full && len(l.conns) < l.limits.Connections*9/10 {
		l.full = false
		l.log.Info("accepting connections again", "open", len(l.conns))
	}
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
	bytes    *semaphore.Weighted

	mu      sync.Mutex
	called  bool
	closed  bool
	replies map[*hold]struct{} // the holds of replies that the client has not taken
	grants  grants
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

// Close closes the connection and releases the holds of its unread replies.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	replies := c.replies
	c.replies = nil
	for h := range replies {
		h.late.Stop()
	}
	c.mu.Unlock()
	for h := range replies {
		h.release()
	}
	c.grants.close()
	c.listener.remove(c)
	return c.Conn.Close()
}

// await keeps the hold of a reply that was handed to the connection until the client has taken the
// reply. If the client does not take it within timeout, the connection is closed.
func (c *conn) await(h *hold, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		h.release()
		return
	}
	c.replies[h] = struct{}{}
	h.late = time.AfterFunc(timeout, func() {
		c.listener.log.Warn("closing the connection of a client that does not read",
			"peer", c.Conn.RemoteAddr().String(), "limit", "SendTimeout", "value", timeout)
		_ = c.Close()
	})
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
