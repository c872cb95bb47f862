package optimistic

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Turns makes operations of one process that would lose to each other wait for each other: those with
// the same key, first come, first served. It saves attempts and excludes nothing: an operation whose turn
// takes longer than maxTurn goes on while the next one has its turn. The zero value is ready for use.
type Turns[K comparable] struct {
	mu    sync.Mutex
	turns map[K]*turn
}

// maxTurn bounds a turn. If the store never answered, all later operations with the key would wait.
const maxTurn = 10 * time.Second

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
		pass := sync.OnceFunc(func() { <-mine.taken; leave() })
		limit := time.AfterFunc(maxTurn, pass)
		return func() { limit.Stop(); pass() }, nil
	case <-ctx.Done():
		leave()
		return nil, &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
}
