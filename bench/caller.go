package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// caller is a store handle that counts the calls of one contender, or of several that are counted
// together. It hides the optional interfaces of the store, RunNotifier among them.
//
// An acquire request ignores the end of its context once it has been sent: an abandoned request may
// still be granted, and then no caller would release the lease.
type caller struct {
	runstore.RunStore
	calls   atomic.Int64 // of any kind
	asked   atomic.Int64 // acquire requests
	refused atomic.Int64 // acquire requests that found the lease held

	mu   sync.Mutex
	lost []time.Duration // the duration of each refused request; recorded if keep is set
	keep bool
}

// notifying is a caller that also passes the store's wake-ups on. A keeper on a plain caller polls.
type notifying struct {
	*caller
	runstore.RunNotifier
}

func (c *caller) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	if err := ctx.Err(); err != nil {
		return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: req.Run, Err: runstore.ErrUnavailable, Cause: err}
	}
	c.calls.Add(1)
	c.asked.Add(1)
	began := time.Now()
	granted, err := c.RunStore.AcquireLease(context.WithoutCancel(ctx), req)
	if errors.Is(err, runstore.ErrLeaseHeld) || errors.Is(err, runstore.ErrConflict) {
		c.lose(time.Since(began))
	}
	return granted, err
}

// lose records a refused attempt.
func (c *caller) lose(took time.Duration) {
	if c.keep {
		c.mu.Lock()
		c.lost = append(c.lost, took)
		c.mu.Unlock()
	}
	c.refused.Add(1)
}

// GetRun ignores the end of its context too: a cancelled read may cost the store's client its
// connection, and the next side of a comparison would pay for a new one.
func (c *caller) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if err := ctx.Err(); err != nil {
		return runstore.Run{}, &runstore.OpError{Op: "get run", Run: id, Err: runstore.ErrUnavailable, Cause: err}
	}
	c.calls.Add(1)
	return c.RunStore.GetRun(context.WithoutCancel(ctx), id)
}

func (c *caller) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	c.calls.Add(1)
	return c.RunStore.RenewLease(ctx, req)
}

func (c *caller) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	c.calls.Add(1)
	return c.RunStore.ReleaseLease(ctx, req)
}

// release releases a lease.
func (c *caller) release(ctx context.Context, held runstore.Lease) error {
	_, err := c.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: held.Fence()})
	return err
}

func (c *caller) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c.calls.Add(1)
	return c.RunStore.Commit(ctx, b)
}
