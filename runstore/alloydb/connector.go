package alloydb

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/runstore/localclock"
)

const (
	// dialerPace is the shortest time between two Dialers; it doubles, up to
	// maxDialerPace, while new ones do not help. Each costs calls of the Admin API,
	// and leaves goroutines of the connector behind.
	dialerPace    = 10 * time.Second
	maxDialerPace = 10 * time.Minute
	// refusedFor is how long exchanges must have failed, without one that succeeded
	// between, before a new Dialer is tried against errors that a failover could
	// explain as well.
	refusedFor = time.Minute
)

// connector dials one instance, and goes on doing so when its Dialer no longer can.
//
// The certificate of a client is judged by the server after the client's part of the
// TLS handshake has ended, so a refusal shows in the metadata exchange that follows. A
// Dialer refreshes after errors of the handshake and before; after this one it does
// not, and until the certificate is over by the client's own clock every dial fails. A
// new Dialer has a new certificate.
type connector struct {
	instance string
	options  []alloydbconn.Option
	logger   *slog.Logger
	clock    localclock.Clock // of this process
	// opening is true until the store is open: what repeating does not mend is told
	// at once.
	opening    atomic.Bool
	pace       time.Duration // of new Dialers
	refusedFor time.Duration

	making chan struct{}  // holds a value while a Dialer is made
	ending sync.WaitGroup // Dialers that are being closed

	mu           sync.Mutex
	closed       bool
	dialer       *dialer
	replacing    bool
	nextPace     time.Duration // before the next Dialer
	notBefore    localclock.Reading
	failingSince localclock.Reading // of exchanges in a row; zero when the last one succeeded
}

// dialer is a Dialer that is closed when it was replaced and nobody dials by it.
type dialer struct {
	*alloydbconn.Dialer
	uses    int
	retired bool
}

func newConnector(ctx context.Context, instance string, options []alloydbconn.Option, logger *slog.Logger, here localclock.Clock) (*connector, error) {
	c := &connector{
		instance: instance, options: options, logger: logger, clock: here,
		pace: dialerPace, refusedFor: refusedFor, making: make(chan struct{}, 1),
	}
	c.opening.Store(true)
	d, err := c.newDialer(ctx)
	if err != nil {
		return nil, c.explain(&setupError{err})
	}
	c.dialer, c.nextPace = d, c.pace
	return c, nil
}

// newDialer makes a Dialer, which outlives ctx.
func (c *connector) newDialer(ctx context.Context) (*dialer, error) {
	d, err := alloydbconn.NewDialer(context.WithoutCancel(ctx), c.options...)
	if err != nil {
		return nil, err
	}
	return &dialer{Dialer: d}, nil
}

// dial opens a connection that is ready for the database's protocol.
func (c *connector) dial(ctx context.Context) (net.Conn, error) {
	for again := false; ; again = true {
		d, err := c.acquire()
		if err != nil {
			return nil, err
		}
		conn, err := c.dialBy(ctx, d)
		if err == nil {
			c.succeeded()
			return conn, nil
		}
		if again || ctx.Err() != nil || !c.shouldReplace(d, err) {
			return nil, c.explain(err)
		}
		if failed := c.replace(ctx, d, err); failed != nil {
			return nil, c.explain(errors.Join(err, failed))
		}
	}
}

// dialBy ends with ctx. The connector's exchange does not, but after 30 seconds.
func (c *connector) dialBy(ctx context.Context, d *dialer) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		conn, err := d.Dial(ctx, c.instance)
		c.release(d)
		select {
		case done <- result{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close() // nobody waits for it
			}
		}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *connector) acquire() (*dialer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, alloydbconn.ErrDialerClosed
	}
	c.dialer.uses++
	return c.dialer, nil
}

func (c *connector) release(d *dialer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.uses--
	c.closeIfUnused(d)
}

// end closes a Dialer that is no longer needed, on the side: it may wait for its last
// metrics to be sent. The caller holds the mutex.
func (c *connector) closeIfUnused(d *dialer) {
	if !d.retired || d.uses > 0 {
		return
	}
	if c.closed { // close does not wait for a dial that hangs
		go func() { _ = d.Close() }()
		return
	}
	c.ending.Go(func() { _ = d.Close() }) // it never fails
}

func (c *connector) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failingSince, c.nextPace = localclock.Reading{}, c.pace
}

// useless reports whether another Dialer may do better than d, which failed with err,
// and may be made now.
func (c *connector) shouldReplace(d *dialer, err error) bool {
	stage := stageOf(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if d != c.dialer {
		return true // there is another already
	}
	if stage == beforeExchange {
		return false // it refreshes by itself
	}
	now := c.clock.Read()
	if c.failingSince.IsZero() {
		c.failingSince = now
	}
	if c.replacing {
		return true // there is another soon
	}
	if now.Before(c.notBefore) {
		return false
	}
	return stage == certificateRefused || now.Sub(c.failingSince) >= c.refusedFor
}

// replace puts a new Dialer in the place of old, unless somebody else did.
func (c *connector) replace(ctx context.Context, old *dialer, why error) error {
	select {
	case c.making <- struct{}{}:
		defer func() { <-c.making }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	if c.dialer != old || c.closed || c.clock.Read().Before(c.notBefore) {
		c.mu.Unlock()
		return nil
	}
	c.replacing = true
	c.notBefore = c.clock.Read().Add(c.nextPace)
	c.nextPace = min(2*c.nextPace, maxDialerPace)
	c.mu.Unlock()
	d, err := c.newDialer(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replacing = false
	if err != nil {
		return err
	}
	if c.closed {
		d.retired = true
		c.closeIfUnused(d)
		return nil
	}
	c.dialer, old.retired = d, true
	c.closeIfUnused(old)
	c.logger.Warn("tapestore: AlloyDB lets nobody in by this connector's certificate; a new connector was made",
		"instance", c.instance, "error", why)
	return nil
}

// close ends the connector. Connections go on.
func (c *connector) close() {
	c.mu.Lock()
	if !c.closed {
		c.dialer.retired = true
		c.closeIfUnused(c.dialer)
		c.closed = true
	}
	c.mu.Unlock()
	c.ending.Wait()
}
