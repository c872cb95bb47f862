package clientlimit

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limit names a limit of connections, in log lines and metrics.
type Limit string

// The limits of Conns.
const (
	Connections           Limit = "Connections"
	ConnectionsPerAddress Limit = "ConnectionsPerAddress"
)

// Label returns the limit's name in metrics.
func (l Limit) Label() string {
	if l == ConnectionsPerAddress {
		return "connections_per_address"
	}
	return "connections"
}

// Conns bounds the open connections of a listener, in total and of each client, which is what Network
// returns. Connections over a limit are closed at once: one that waited in the queue of the listener would
// delay those of other clients.
type Conns struct {
	opts ConnsOptions
	some *rate.Limiter // of lines in the log

	mu        sync.Mutex
	open      int
	clients   map[string]int // by client, without zeros
	refused   map[Limit]int64
	notLogged int64
}

// ConnsOptions configures Conns.
type ConnsOptions struct {
	// Total is the most open connections.
	Total int
	// PerAddress is the most of one client; 0 is no limit but Total.
	PerAddress int
	// Listener names the listener in the log.
	Listener string
	// Log receives the first five refusals, and then one every ten seconds on average.
	Log *slog.Logger
}

// NewConns returns the limits of a listener.
func NewConns(opts ConnsOptions) *Conns {
	return &Conns{
		opts: opts, some: rate.NewLimiter(rate.Every(10*time.Second), 5),
		clients: map[string]int{}, refused: map[Limit]int64{Connections: 0, ConnectionsPerAddress: 0},
	}
}

// Admit counts a connection from the address until release is called, once or more often. If a limit is
// reached it returns nil, and the refusal is counted and logged.
func (c *Conns) Admit(peer net.Addr) (release func()) {
	host := Host(peer.String())
	client := Network(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open >= c.opts.Total:
		c.refuse(host, Connections, c.opts.Total)
		return nil
	case c.opts.PerAddress > 0 && c.clients[client] >= c.opts.PerAddress:
		c.refuse(host, ConnectionsPerAddress, c.opts.PerAddress)
		return nil
	}
	c.open++
	c.clients[client]++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open--
		if c.clients[client]--; c.clients[client] == 0 {
			delete(c.clients, client)
		}
	})
}

// refuse counts and logs a refusal; c.mu is held.
func (c *Conns) refuse(host string, limit Limit, value int) {
	c.refused[limit]++
	if !c.some.Allow() {
		c.notLogged++
		return
	}
	c.opts.Log.Warn("refused a connection", "listener", c.opts.Listener, "peer", host,
		"limit", string(limit), "value", value, "not_logged", c.notLogged)
	c.notLogged = 0
}

// Open returns the number of open connections.
func (c *Conns) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// Refused returns the number of connections that were refused because of a limit.
func (c *Conns) Refused(limit Limit) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[limit]
}

// Listen returns lis with the connections that are admitted.
func (c *Conns) Listen(lis net.Listener) net.Listener { return limited{lis, c} }

type limited struct {
	net.Listener
	conns *Conns
}

// Accept returns the next connection within the limits.
func (l limited) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if release := l.conns.Admit(raw.RemoteAddr()); release != nil {
			return admitted{raw, release}, nil
		}
		_ = raw.Close()
	}
}

// admitted is a connection that counts until it is closed.
type admitted struct {
	net.Conn
	release func()
}

// Close closes the connection.
func (c admitted) Close() error {
	c.release()
	return c.Conn.Close()
}
