package optimistic

import (
	"context"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// Turns is a lock for each key, for operations of one process that would lose to each other. Those with
// the same key wait for each other, first come, first served. The zero value is ready for use.
type Turns[K comparable] struct {
	mu    sync.Mutex
	turns map[K]*turn
}

type turn struct {
	taken chan struct{} // holds a value while an operation has its turn
	users int           // operations that have their turn or wait for it; guarded by Turns.mu
}

// Take waits for the caller's turn and returns a function that ends it. The caller must call that
// function exactly once. If ctx ends before the turn, the error is runstore.ErrUnavailable for the
// operation op.
func (t *Turns[K]) Take(ctx context.Context, key K, op string) (end func(), err error) {
	t.mu.Lock()
	if t.turns == nil {
		t.turns = map[K]*turn{}
	}
	mine := t.turns[key]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		t.turns[key] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.turns, key)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
}
