package kit

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
)

// BlockedWriters are the writers that the engine blocks for a case.
type BlockedWriters struct {
	held func(ctx context.Context, n int) error // nil if the engine does not show blocked writers
	// Resume unblocks the writers. It may be called more than once.
	Resume func()
}

// BlockWriters makes the engine block writers until Resume is called or the case ends.
func BlockWriters(t harness.T, e *harness.Env) BlockedWriters {
	t.Helper()
	return Block(t, e.BlockWriters)
}

// Block makes the engine block writers by how, which is BlockWriters or BlockPuts of the harness.
func Block(t harness.T, how func(t harness.T) (func(ctx context.Context, n int) error, func())) BlockedWriters {
	t.Helper()
	held, resume := how(t)
	resume = sync.OnceFunc(resume)
	t.Cleanup(resume)
	return BlockedWriters{held, resume}
}

// Await waits until the engine blocks a write, or all writes have ended. It fails the case if
// neither happens, as the case would then prove nothing.
func (b BlockedWriters) Await(t harness.T, ended <-chan struct{}) {
	t.Helper()
	b.AwaitMany(t, 1, ended)
}

// AwaitMany is Await for n writes.
func (b BlockedWriters) AwaitMany(t harness.T, n int, ended <-chan struct{}) {
	t.Helper()
	if b.held == nil {
		WaitAtMost(t, ended, ArrivalTime)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.CaseTimeout)
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

// ArrivalTime is 20 ms: it gives a call that was just started time to reach the engine where
// nothing shows that it did. No assertion depends on it: a slower call arrives later.
const ArrivalTime = 20 * time.Millisecond

// WaitAtMost returns when done is closed, or after d.
func WaitAtMost(t harness.T, done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-t.Context().Done():
	}
}
