package bench

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Network is a network path to a store. It counts the requests that pass, and may have a longer
// round trip than [Store.Open].
type Network struct {
	// Open opens a new handle over the network. The caller closes it.
	Open func(ctx context.Context) (runstore.RunStore, error)
	// Requests returns how many requests the handles have sent, including those of their background
	// work; nil where requests cannot be counted.
	Requests func() int64
	// Close ends the network, after its handles are closed. Nil means that there is nothing to end.
	Close func() error
}

// connection is one or several handles on a network of their own.
type connection struct {
	runstore.RunStore // the first handle
	all               []runstore.RunStore
	network           Network
}

// connect opens handles over a network of their own, so that their requests are counted apart.
func connect(ctx context.Context, store Store, handles int) (c *connection, err error) {
	c = &connection{network: Network{Open: store.Open}}
	if store.Network != nil {
		if c.network, err = store.Network(ctx); err != nil {
			return nil, err
		}
	}
	for range handles {
		handle, err := c.network.Open(ctx)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.all = append(c.all, handle)
	}
	c.RunStore = c.all[0]
	return c, nil
}

// Close closes the handles and their network.
func (c *connection) Close() error {
	err := closeHandles(c.all)
	if c.network.Close != nil {
		err = errors.Join(err, c.network.Close())
	}
	return err
}

// counted reports whether the requests of the connection are counted.
func (c *connection) counted() bool { return c.network.Requests != nil }

// sent returns how many requests the connection has sent, or 0 where they are not counted.
func (c *connection) sent() int64 {
	if !c.counted() {
		return 0
	}
	return c.network.Requests()
}

// repeat calls do for d, one call after the other, and records rate, latencies, allocations and
// requests of the operation. The requests include everything that the connection sends meanwhile.
func (c *connection) repeat(ctx context.Context, d time.Duration, m *Measured, unit, what string, do func(ctx context.Context) error) error {
	before, sent := allocated(), c.sent()
	load, err := Drive(ctx, 1, d, func(ctx context.Context, _ int) error { return do(ctx) })
	if err != nil {
		return err
	}
	objects, _ := allocated().since(before, load.Done)
	m.Add(Rate, unit, More, load.PerSecond())
	m.Quantiles(what, load.Latencies)
	m.Add("allocations per "+what, "", Less, objects)
	c.addRequests(m, what, sent, load.Done)
	return nil
}

// addRequests records the number of requests since sent, per operation, for n operations.
func (c *connection) addRequests(m *Measured, what string, sent int64, n int) {
	if c.counted() && n > 0 {
		m.Add("requests per "+what, "", Less, float64(c.sent()-sent)/float64(n))
	}
}
