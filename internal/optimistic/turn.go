package optimistic

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// Take takes a turn: a lock that is held while its buffer of one is full. The operations of one
// process that would lose to each other take turns instead. op is that of the error if ctx ends
// before, ErrUnavailable.
func Take(ctx context.Context, turn chan struct{}, op string) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
}
