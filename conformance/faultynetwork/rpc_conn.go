package faultynetwork

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// rpcConn is one connection of the program. The link's lock guards all fields but Conn.
type rpcConn struct {
	net.Conn
	link  *RPC
	calls map[*call]struct{} // in flight
	dead  bool
	harm
}

// rpcListener accepts the connections of a link.
type rpcListener struct {
	net.Listener
	link *RPC
}

func (a rpcListener) Accept() (net.Conn, error) {
	for {
		conn, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var c *rpcConn
		a.link.change(func() {
			if a.link.cut || a.link.closed {
				reset(conn)
				return
			}
			c = &rpcConn{Conn: conn, link: a.link, calls: map[*call]struct{}{}, harm: a.link.harm}
			a.link.conns[c] = struct{}{}
		})
		if c != nil {
			return c, nil
		}
	}
}

// Read reads what the program sent, after the end of a black hole.
func (c *rpcConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.passes() {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write writes to the program, after the end of a black hole.
func (c *rpcConn) Write(b []byte) (int, error) {
	if !c.passes() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// passes waits for the end of a black hole, and reports whether the connection is still open.
func (c *rpcConn) passes() bool {
	dead := false
	_ = c.link.await(context.Background(), func() bool { // the end of the connection ends the wait
		dead = c.dead
		return c.dead || !c.black
	})
	return !dead
}

// Close ends the connection.
func (c *rpcConn) Close() error {
	c.link.change(func() {
		c.dead = true
		delete(c.link.conns, c)
	})
	return c.Conn.Close()
}

// reset resets a connection and leaves its RPCs alone. The caller holds the lock.
func (l *RPC) reset(c *rpcConn) {
	c.dead = true
	delete(l.conns, c)
	reset(c.Conn)
}

// kill resets a connection and aborts its RPCs, held ones included. The caller holds the lock.
func (l *RPC) kill(c *rpcConn) {
	for call := range c.calls {
		call.abort()
	}
	l.reset(c)
}

// connCredentials record the connection of each RPC in its AuthInfo.
type connCredentials struct {
	credentials.TransportCredentials
}

func (connCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := connInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	info.conn, _ = conn.(*rpcConn)
	return conn, info, nil
}

func (c connCredentials) Clone() credentials.TransportCredentials {
	return connCredentials{c.TransportCredentials.Clone()}
}

type connInfo struct {
	credentials.CommonAuthInfo
	conn *rpcConn
}

func (connInfo) AuthType() string { return "insecure" }
