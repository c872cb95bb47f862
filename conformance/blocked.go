package conformance

import (
	"context"
	"sync"
)

// blockedWriters are the writers that the engine blocks for a case.
type blockedWriters struct {
	held   func(ctx context.Context, n int) error // nil if the engine does not show blocked writers
	resume func()                                 // may be called more than once
}

// blockWriters makes the engine block writers until resume is called or the case ends.
func blockWriters(t T, e *Env) blockedWriters {
	t.Helper()
	return block(t, e.BlockWriters)
}

// block calls how, a BlockWriters or BlockPuts of the harness.
func block(t T, how func(t T) (func(ctx context.Context, n int) error, func())) blockedWriters {
	t.Helper()
	held, resume := how(t)
	resume = sync.OnceFunc(resume)
	t.Cleanup(resume)
	return blockedWriters{held, resume}
}

// await waits until the engine blocks a write, or all writes have ended. It fails the case if
// neither happens, as the case would then prove nothing.
func (b blockedWriters) await(t T, ended <-chan struct{}) {
	t.Helper()
	b.awaitMany(t, 1, ended)
}

// awaitMany is await for n writes.
func (b blockedWriters) awaitMany(t T, n int, ended <-chan struct{}) {
	t.Helper()
	if b.held == nil {
		waitAtMost(t, ended, arrivalTime)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	blocked := make(chan error, 1)
	go func() { blocked <- b.held(ctx, n) }()
	select {
	case err := <-blocked:
		if err != nil {
			t.Fatalf("the harness was to block %d writes at the engine: %v", n, err)
		}
	case <-ended:
		cancel()
		<-blocked
	}
}
