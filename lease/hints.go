package lease

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// hints is a subscription to the store's wake-ups for a run. A wake-up after a release means that
// the lease may be free.
type hints struct {
	keeper *Keeper
	run    runstore.RunID
	on     runstore.WakeOn
	cancel context.CancelFunc     // nil before begin
	began  chan (<-chan struct{}) // delivers ch when the subscription has begun
	ch     <-chan struct{}        // nil before that, and if the store sends no wake-ups
}

// begin starts to subscribe to the wake-ups on its first call. It does not wait for the store, which may
// be unreachable: until the subscription has begun, and without one, the caller polls.
func (h *hints) begin(ctx context.Context) {
	notifier, ok := runstore.As[runstore.RunNotifier](h.keeper.store)
	if h.cancel != nil || !ok {
		return
	}
	ctx, h.cancel = context.WithCancel(ctx)
	began := make(chan (<-chan struct{}), 1)
	h.began = began
	go func() {
		if ch, err := notifier.RunWakeups(ctx, h.run, h.on); err == nil {
			began <- ch
		}
	}()
}

// end ends the subscription.
func (h *hints) end() {
	if h.cancel != nil {
		h.cancel()
	}
}

// pause waits for d, a wake-up or the beginning of the subscription, because what happened before it
// causes no wake-up. It reports false if ctx has ended.
func (h *hints) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case h.ch = <-h.began:
		return true
	case <-h.ch:
		return true
	case <-timer.C:
		return true
	}
}
