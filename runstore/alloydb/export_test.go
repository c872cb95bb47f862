package alloydb

import (
	"context"
	"log/slog"
	"net"
	"time"

	"cloud.google.com/go/alloydbconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// LagOf returns how far a node is behind.
func LagOf(ctx context.Context, conn *pgx.Conn) (lag time.Duration, known bool, err error) {
	_, lag, known, err = lagOf(ctx, conn)
	return lag, known, err
}

// StatementFaults returns what is wrong with the files of the folder sql.
func StatementFaults() []string { return sqlFiles.Faults() }

// Connector is a connector with times that a test has set.
type Connector struct{ *connector }

// NewConnector returns a connector that is ready to be used.
func NewConnector(ctx context.Context, instance string, pace, refusedFor time.Duration, options ...alloydbconn.Option) (Connector, error) {
	c, err := newConnector(ctx, instance, options, slog.New(slog.DiscardHandler), localclock.Clock{})
	if err != nil {
		return Connector{}, err
	}
	c.pace, c.nextPace, c.refusedFor = pace, pace, refusedFor
	return Connector{c}, nil
}

// Dial dials.
func (c Connector) Dial(ctx context.Context) (net.Conn, error) { return c.dial(ctx) }

// Pass lets d pass for the connector: what it remembers was that much longer ago.
func (c Connector) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notBefore = c.notBefore.Add(-d)
	if !c.failingSince.IsZero() {
		c.failingSince = c.failingSince.Add(-d)
	}
}

// Close closes.
func (c Connector) Close() { c.close() }

// ConnectorsClosed reports whether the connectors of a store's primary and read pool are
// closed.
func ConnectorsClosed(s *ReadPoolStore) bool {
	for _, c := range []*connector{s.primary.connector, s.pool.connector} {
		c.mu.Lock()
		closed := c.closed
		c.mu.Unlock()
		if !closed {
			return false
		}
	}
	return true
}

// ErrBehind is the error of a read from a node that is further behind than the bound, or may be.
var ErrBehind = errBehind

// NewReadPool returns a read pool with the connections of pool. pooled is whether a proxy may send
// each transaction to another node. A read may take an hour, so that a slow machine fails no test.
func NewReadPool(pool *pgxpool.Pool, pooled bool, logger *slog.Logger) ReadPoolPauses {
	return ReadPoolPauses{&readPool{pool: pool, pooled: pooled, logger: logger, timeout: time.Hour}}
}

// ReadPoolPauses is a read pool with its pauses after failures.
type ReadPoolPauses struct{ *readPool }

// NewReadPoolPauses returns a read pool that has not failed yet.
func NewReadPoolPauses() ReadPoolPauses {
	return ReadPoolPauses{&readPool{logger: slog.New(slog.DiscardHandler)}}
}

// Failed records a failed read.
func (p ReadPoolPauses) Failed(err error) { p.failed(err) }

// Recovered records a read that succeeded.
func (p ReadPoolPauses) Recovered() { p.recovered() }

// Paused reports whether reads go to the primary for now.
func (p ReadPoolPauses) Paused() bool { return p.paused() }

// PoolOf returns the read pool of a store.
func PoolOf(s *ReadPoolStore) ReadPoolPauses { return ReadPoolPauses{s.pool} }

// Read calls read with a connection of the pool, if that node measures a lag of at most bound.
func (p ReadPoolPauses) Read(ctx context.Context, bound time.Duration, read func(context.Context, *pgx.Conn) error) error {
	return p.read(ctx, bound, read)
}

// ConnectTimeout returns how long a dial of the pool may take.
func (p ReadPoolPauses) ConnectTimeout() time.Duration {
	return p.pool.Config().ConnConfig.ConnectTimeout
}
