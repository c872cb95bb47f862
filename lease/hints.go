package lease

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// hints receives the store's wake-ups for one run while Keeper.Acquire waits for its lease: the
// lease may be free.
type hints struct {
	keeper *Keeper
	run    runstore.RunID
	asked  bool
	cancel context.CancelFunc
	ch     <-chan struct{} // nil if the store sends none
}

// begin subscribes to the store's wake-ups when it is first called, and reports whether it did so.
// Without a subscription the caller polls.
func (h *hints) begin(ctx context.Context) bool {
	notifier, ok := h.keeper.store.(runstore.RunNotifier)
	if h.asked || !ok {
		return false
	}
	h.asked = true
	bound, cancel := context.WithCancel(ctx)
	ch, err := notifier.RunWakeups(bound, h.run, runstore.OnRelease)
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

// pause waits for d or a hint, and reports whether ctx goes on.
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
