// Package gate blocks goroutines for tests, and shows how many it blocked.
package gate

import (
	"context"
	"errors"
	"sync"
)

// Gate blocks those who pass it while it is closed. The zero Gate is open.
type Gate struct {
	mu     sync.Mutex
	closed *closed // nil while the gate is open
}

type closed struct {
	end     chan struct{} // closed when the gate opens
	blocked chan struct{} // receives a value from each caller that is blocked
}

// Close closes the gate until open is called. held waits until n more callers of Pass were blocked,
// and returns an error if ctx ends or the gate opens before that. A gate that is closed once more
// while it is closed blocks later callers until the second open.
func (g *Gate) Close() (held func(ctx context.Context, n int) error, open func()) {
	c := &closed{end: make(chan struct{}), blocked: make(chan struct{})}
	g.mu.Lock()
	g.closed = c
	g.mu.Unlock()
	held = func(ctx context.Context, n int) error {
		for range n {
			select {
			case <-c.blocked:
			case <-c.end:
				return errors.New("gate: opened")
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	return held, sync.OnceFunc(func() {
		g.mu.Lock()
		if g.closed == c {
			g.closed = nil
		}
		g.mu.Unlock()
		close(c.end)
	})
}

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.now() != nil }

func (g *Gate) now() *closed {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Pass returns when the gate is open, or with the error of ctx when that ends first. It reports
// whether it was blocked.
func (g *Gate) Pass(ctx context.Context) (blocked bool, err error) {
	c := g.now()
	if c == nil {
		return false, nil
	}
	seen := c.blocked
	for {
		select {
		case seen <- struct{}{}:
			seen = nil
		case <-c.end:
			return true, nil
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}
