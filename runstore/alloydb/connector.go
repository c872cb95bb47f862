package alloydb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

const (
	// dialerPace is the shortest time between two Dialers: 10 s. It doubles, up to maxDialerPace,
	// while new Dialers do not help. Each Dialer costs calls of the Admin API and leaves goroutines
	// of the connector behind.
	dialerPace    = 10 * time.Second
	maxDialerPace = 10 * time.Minute
	// refusedFor is how long exchanges must have failed, with no success in between, before errors
	// that a failover would explain too lead to a new Dialer: 1 minute.
	refusedFor = time.Minute
)

// connector dials one instance, and replaces its Dialer when the Dialer's certificate no longer
// works.
//
// The server judges a client's certificate after the client's part of the TLS handshake has ended,
// so a refusal appears only in the metadata exchange that follows. A Dialer refreshes its
// certificate after errors of the handshake and earlier steps, but not after this one. Without a
// new Dialer every dial would fail until the certificate expires by the client's clock. A new
// Dialer has a new certificate.
type connector struct {
	instance string
	options  []alloydbconn.Option
	logger   *slog.Logger
	clock    localclock.Clock // this process's clock
	// opening is true until the store is open. While it is, errors that a retry does not fix are
	// reported at once.
	opening    atomic.Bool
	pace       time.Duration // between new Dialers, at first
	refusedFor time.Duration

	making chan struct{}  // holds a value while a Dialer is created
	ending sync.WaitGroup // Dialers that are being closed

	mu           sync.Mutex
	closed       bool
	dialer       *dialer
	nextPace     time.Duration // until the next Dialer is allowed
	notBefore    localclock.Reading
	failingSince localclock.Reading // start of a series of failed exchanges; zero if the last one succeeded
}

// dialer is a Dialer with a use count. It is closed once it was replaced and no dial uses it.
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
		return nil, outcome.Unavailable(fmt.Errorf("the AlloyDB connector cannot be set up; %s: %w", credentialsAdvice, err))
	}
	c.dialer, c.nextPace = d, c.pace
	return c, nil
}

// newDialer creates a Dialer, which outlives ctx.
func (c *connector) newDialer(ctx context.Context) (*dialer, error) {
	d, err := alloydbconn.NewDialer(context.WithoutCancel(ctx), c.options...)
	if err != nil {
		return nil, err
	}
	return &dialer{Dialer: d}, nil
}

// dial returns a connection that is ready for the database's protocol. If a new Dialer may help, it
// creates one and tries once more.
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

// dialBy dials with d and returns when ctx ends at the latest. The connector's exchange ignores ctx;
// its request and its reply are each bounded by 30 seconds.
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
				_ = conn.Close() // the caller has left
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

// acquire returns the current Dialer and counts a use of it. The caller must release it.
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

// closeIfUnused closes a Dialer that was replaced and is not in use. It does so in the background,
// because Close may wait for the Dialer's last metrics to be sent. The caller holds c.mu.
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

// succeeded records a dial that succeeded.
func (c *connector) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failingSince, c.nextPace = localclock.Reading{}, c.pace
}

// shouldReplace reports whether another Dialer may do better than d, which failed with err, and may
// be created now.
func (c *connector) shouldReplace(d *dialer, err error) bool {
	stage := stageOf(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if d != c.dialer {
		return true // it was replaced already
	}
	if stage == beforeExchange {
		return false // it refreshes its certificate by itself
	}
	now := c.clock.Read()
	if c.failingSince.IsZero() {
		c.failingSince = now
	}
	if now.Before(c.notBefore) {
		return false
	}
	return stage == certificateRefused || now.Sub(c.failingSince) >= c.refusedFor
}

// replace replaces the Dialer old by a new one, unless another dial has done so.
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
	c.mu.Unlock()
	d, err := c.newDialer(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	// Not earlier: until then dials that fail wait for this Dialer.
	c.notBefore = c.clock.Read().Add(c.nextPace)
	c.nextPace = min(2*c.nextPace, maxDialerPace)
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
	c.logger.Warn("tapestore: AlloyDB refuses this connector's certificate; the store uses a new connector",
		"instance", c.instance, "error", why)
	return nil
}

// setOpened marks the store as open: from now on no error of the connector is final. A nil connector
// is that of a host.
func (c *connector) setOpened() {
	if c != nil {
		c.opening.Store(false)
	}
}

// close closes the connector, if there is one. No connection may be dialled any more. Its open
// connections stay usable.
func (c *connector) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	if !c.closed {
		c.dialer.retired = true
		c.closeIfUnused(c.dialer)
		c.closed = true
	}
	c.mu.Unlock()
	c.ending.Wait()
}
