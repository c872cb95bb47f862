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
	asked  bool
	cancel context.CancelFunc
	ch     <-chan struct{} // nil if the store sends no wake-ups
}

// begin subscribes to the wake-ups on its first call, and reports whether this call did. Without a
// subscription the caller polls.
func (h *hints) begin(ctx context.Context) bool {
	notifier, ok := runstore.As[runstore.RunNotifier](h.keeper.store)
	if h.asked || !ok {
		return false
	}
	h.asked = true
	bound, cancel := context.WithCancel(ctx)
	ch, err := notifier.RunWakeups(bound, h.run, h.on)
	if err != nil {
		cancel()
		return false
	}
	h.ch, h.cancel = ch, cancel
	return true
}

// end ends the subscription.
func (h *hints) end() {
	if h.cancel != nil {
		h.cancel()
	}
}

// pause waits for d or a wake-up. It reports false if ctx has ended.
func (h *hints) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-h.ch:
		return true
	case <-timer.C:
		return true
	}
}
