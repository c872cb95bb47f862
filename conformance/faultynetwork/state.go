package faultynetwork

import (
	"context"
	"sync"
)

// state is a lock whose waiters are notified of every change of what it guards.
type state struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
}

func newState() state { return state{changed: make(chan struct{})} }

// change calls do under the lock and wakes all waiters.
func (s *state) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until so, called under the lock, returns true.
func (s *state) await(ctx context.Context, so func() bool) error {
	for {
		s.mu.Lock()
		now, changed := so(), s.changed
		s.mu.Unlock()
		if now {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
