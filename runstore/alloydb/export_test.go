package alloydb

import (
	"context"
	"log/slog"
	"net"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/runstore/localclock"
)

// LagOf tells how far a node is behind.
var LagOf = lagOf

// Connector is a connector with short times.
type Connector struct{ *connector }

// NewConnector makes one that is ready to be used.
func NewConnector(ctx context.Context, instance string, pace, refusedFor time.Duration, options ...alloydbconn.Option) (Connector, error) {
	c, err := newConnector(ctx, instance, options, slog.New(slog.DiscardHandler), localclock.Clock{})
	if err != nil {
		return Connector{}, err
	}
	c.pace, c.wait, c.refusedFor = pace, pace, refusedFor
	return Connector{c}, nil
}

// Dial dials.
func (c Connector) Dial(ctx context.Context) (net.Conn, error) { return c.dial(ctx) }

// Close closes.
func (c Connector) Close() { c.close() }
