package alloydb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// instanceAddresses is an instance with its addresses in the Admin API. The addresses are from the
// ranges for private use and for documentation, and the name from the domain for tests, so nothing
// real has them.
type instanceAddresses struct {
	name, uid, private, public, psc string
	count                           func(*Stats) *int
}

var instances = []instanceAddresses{
	{
		name: "primary", uid: "00000000-0000-0000-0000-000000000001",
		private: "10.0.0.1", public: "192.0.2.1", psc: "primary.alloydb.test",
		count: func(n *Stats) *int { return &n.Primary },
	},
	{
		name: "pool", uid: "00000000-0000-0000-0000-000000000002",
		private: "10.0.0.2", public: "192.0.2.2", psc: "pool.alloydb.test",
		count: func(n *Stats) *int { return &n.ReadPool },
	},
}

// door is the listener for one address of one instance.
type door struct {
	address        string // as the Admin API returns it
	listener       net.Listener
	tls            *tls.Config
	instance, path func(*Stats) *int // the counters of its connections
}

// connSet is a set of connections that are cut together.
type connSet struct {
	ctx    context.Context
	cancel context.CancelFunc
	open   sync.WaitGroup
}

func newConnSet() *connSet {
	c := &connSet{}
	c.ctx, c.cancel = context.WithCancel(context.Background()) // connections outlive the call that starts the server
	return c
}

// cutAll cuts the connections and waits until they are gone.
func (c *connSet) cutAll() {
	c.cancel()
	c.open.Wait()
}

// listenAll starts the proxies of all instances.
func (s *Server) listenAll() error {
	for _, instance := range instances {
		config, err := s.ca.serverTLS(instance.name, []string{instance.private, instance.public, instance.psc})
		if err != nil {
			return err
		}
		for _, d := range []*door{
			{address: instance.private, path: func(n *Stats) *int { return &n.PrivateIP }},
			{address: instance.public, path: func(n *Stats) *int { return &n.PublicIP }},
			{address: instance.psc, path: func(n *Stats) *int { return &n.PSC }},
		} {
			if d.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
				return err
			}
			d.tls, d.instance = config, instance.count
			s.doors = append(s.doors, d)
			s.serving.Go(func() { s.accept(d) })
		}
	}
	return nil
}

// dial is the dial function of a Dialer. It connects to the listener for an address that the Admin
// API returned, and to nothing else.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	door, err := s.Door(address)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, door)
}

// Door returns the host and port on the loopback interface that serve an address of the Admin API.
// It is for a dial function (WithDialFunc) that puts a network of its own in between.
func (s *Server) Door(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	for _, d := range s.doors {
		if d.address == host && port == proxyPort {
			return d.listener.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("emulators: there is no AlloyDB instance at %s", address)
}

// accept serves the connections of a listener until it is closed.
func (s *Server) accept(d *door) {
	for {
		conn, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			<-time.After(10 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		conns := s.conns
		if conns != nil {
			conns.open.Go(func() { s.serveConn(conns.ctx, d, conn.(*net.TCPConn)) })
		}
		s.mu.Unlock()
		if conns == nil {
			_ = conn.Close()
		}
	}
}

// serveConn serves one connection until it ends or ctx cuts it.
func (s *Server) serveConn(ctx context.Context, d *door, conn *net.TCPConn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	client := tls.Server(conn, d.tls)
	server, err := s.admit(ctx, d, client)
	if err != nil {
		if ctx.Err() == nil {
			s.refuse(client, conn, err)
		}
		return
	}
	defer s.count(func(n *Stats) { n.Open-- })
	defer server.Close()
	abort := func() {
		_ = conn.Close()
		_ = server.Close()
	}
	defer context.AfterFunc(ctx, abort)()

	var there sync.WaitGroup
	there.Go(func() { copyStream(server, client, abort) })
	copyStream(client, server, abort)
	there.Wait()
}

// halfCloser is a connection of which one direction can be closed before the other.
type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// copyStream copies until its source ends, and then closes the other side's direction. If either
// side fails, it aborts both.
func copyStream(to, from halfCloser, abort func()) {
	if _, err := io.Copy(to, from); err != nil {
		abort()
	} else if err := to.CloseWrite(); err != nil {
		abort()
	}
}

// admit checks a client and connects it to the server behind the proxy, ready for the database's
// own protocol.
func (s *Server) admit(ctx context.Context, d *door, client *tls.Conn) (_ *net.TCPConn, err error) {
	if err := client.SetDeadline(time.Now().Add(s.exchangeTimeout)); err != nil {
		return nil, err
	}
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	hello, err := readExchange(client)
	if err != nil {
		return nil, err
	}
	login, err := s.checkLogin(hello)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: s.exchangeTimeout}
	server, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, &refusalError{fmt.Sprintf("the PostgreSQL server behind the emulator does not answer: %v", err)}
	}
	// Counted before the reply, so that an admitted client finds itself counted.
	s.count(func(n *Stats) {
		n.Open++
		for _, counter := range []*int{login(n), d.instance(n), d.path(n)} {
			*counter++
		}
	})
	if err := errors.Join(writeExchangeReply(client, ""), client.SetDeadline(time.Time{})); err != nil {
		s.count(func(n *Stats) { n.Open-- })
		return nil, errors.Join(err, server.Close())
	}
	return server.(*net.TCPConn), nil
}

// refuse sends a client that was not admitted the reason, as far as the protocol allows.
func (s *Server) refuse(client *tls.Conn, conn *net.TCPConn, err error) {
	s.count(func(n *Stats) { n.Refused++ })
	_ = conn.SetDeadline(time.Now().Add(s.exchangeTimeout))
	if refusal := (*refusalError)(nil); errors.As(err, &refusal) {
		_ = writeExchangeReply(client, refusal.reason)
		_ = client.CloseWrite()
	}
	// A connection that is closed with unread data is reset, and the client may
	// lose the last message: the alert of a bad certificate, or the reason.
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
}
