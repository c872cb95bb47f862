package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/bench"
)

// payload is the event that a turn stores. It has the length of the event that a turn of a store
// commits.
var payload = bytes.Repeat([]byte("x"), bench.TurnBytes)

// holding is a lease while one contender holds it.
type holding struct {
	attempts int             // requests for the lease, the granted one included
	lost     []time.Duration // how long each refused attempt took
	// write stores one event as users of the peer do under the lease.
	write func(ctx context.Context) error
	// release releases the lease, and frees the holding's resources in this process.
	release func(ctx context.Context) error
	// pause stops the heartbeat, or makes the server end the session, as happens when the holder's
	// process does not run.
	pause func(ctx context.Context) error
	// wake is the write of a paused holder that runs again. Nil means write.
	wake func(ctx context.Context) error
	// abandon frees the resources of a paused holding in this process. Nil means that there are
	// none.
	abandon func()
}

// contest is a contest for the leases of one peer. It implements bench.Contest and bench.Pauser.
type contest struct {
	// acquire waits for a lease. With an error it returns a holding, or nil, whose attempts and lost
	// describe what it did until then; the lease is not held. Leases are numbered from 0.
	// PauseAndWake uses the lease with the number leases, and sets brief to request a short time to
	// live.
	acquire   func(ctx context.Context, contender, lease int, brief bool) (*holding, error)
	leases    int
	ttl       time.Duration // of a brief lease; 0 where a lease lasts as long as its session
	committed func(ctx context.Context) (int, error)
	close     func() error // nil means nothing
}

// Turn implements bench.Contest.
func (c *contest) Turn(ctx context.Context, contender, lease int) (bench.Turn, error) {
	var calls atomic.Int64
	ctx = context.WithValue(ctx, callsKey{}, &calls)
	began := time.Now()
	h, err := c.acquire(ctx, contender, lease, false)
	turn := bench.Turn{Waited: time.Since(began)}
	if h != nil {
		turn.Attempts, turn.Lost = h.attempts, h.lost
	}
	if err != nil {
		turn.Calls = int(calls.Load())
		return turn, fmt.Errorf("acquire: %w", err)
	}
	// A turn that holds its lease runs to its end. Otherwise the end of a measurement would leave a
	// lease behind for its whole time to live.
	ctx = context.WithoutCancel(ctx)
	err = h.write(ctx)
	if err != nil {
		err = fmt.Errorf("write: %w", err)
	}
	if e := h.release(ctx); e != nil {
		err = errors.Join(err, fmt.Errorf("release: %w", e))
	}
	turn.Calls = int(calls.Load())
	return turn, err
}

func (c *contest) Committed(ctx context.Context) (int, error) { return c.committed(ctx) }

func (c *contest) Close() error {
	if c.close == nil {
		return nil
	}
	return c.close()
}

// PauseAndWake pauses a holder, has another contender take the lease over and write, and then has
// the first holder write while the second still holds the lease.
func (c *contest) PauseAndWake(ctx context.Context) (bench.Woke, error) {
	first, err := c.acquire(ctx, 0, c.leases, true)
	if err != nil {
		return bench.Woke{}, fmt.Errorf("acquire: %w", err)
	}
	if first.abandon != nil {
		defer first.abandon()
	}
	paused := time.Now()
	if err := first.pause(ctx); err != nil {
		return bench.Woke{}, fmt.Errorf("pause the holder: %w", err)
	}
	second, err := c.acquire(ctx, 1, c.leases, true)
	if err != nil {
		return bench.Woke{}, fmt.Errorf("take the lease over: %w", err)
	}
	woke := bench.Woke{Takeover: time.Since(paused), TTL: c.ttl, Answer: "no error"}
	before, err := c.committed(ctx)
	if err != nil {
		return woke, err
	}
	if err := second.write(ctx); err != nil {
		return woke, fmt.Errorf("write of the successor: %w", err)
	}
	late := first.write
	if first.wake != nil {
		late = first.wake
	}
	if err := late(ctx); err != nil {
		woke.Answer = err.Error()
	}
	if err := second.release(ctx); err != nil {
		// The late write may have ended the successor's lease. What is stored decides the outcome.
		woke.Answer += "; the successor's release: " + err.Error()
	}
	after, err := c.committed(ctx)
	if err != nil {
		return woke, err
	}
	switch after - before {
	case 1:
	case 2:
		woke.Stored = true
	default:
		return woke, fmt.Errorf("the successor and the paused holder wrote one event each, and %d were stored", after-before)
	}
	return woke, nil
}

// callsKey is the context key of the request counter.
type callsKey struct{}

// called counts one request to a server in the turn of ctx.
func called(ctx context.Context) {
	if n, ok := ctx.Value(callsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
}

// pollAtMost bounds the pause between two attempts of the peers that poll: 10 ms. Each pause is
// random below it; on average it is a few times as long as a turn on a local disk.
const pollAtMost = 10 * time.Millisecond

// sleep waits for a random time below most. It returns the error of ctx if ctx ends first.
func sleep(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(rand.N(most))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poll calls attempt until it reports a grant. It records in h the number of attempts and the
// duration of each refused one. The end of ctx ends a pause but not an attempt, whose outcome would
// be unknown.
func (h *holding) poll(ctx context.Context, attempt func(ctx context.Context) (bool, error)) error {
	for {
		h.attempts++
		began := time.Now()
		granted, err := attempt(context.WithoutCancel(ctx))
		if granted || err != nil {
			return err
		}
		h.lost = append(h.lost, time.Since(began))
		if err := sleep(ctx, pollAtMost); err != nil {
			return err
		}
	}
}
