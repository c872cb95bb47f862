package lease

import (
	"sync"
	"time"
)

// suspendInterval is the time between two looks at the wall clock: 1 s is short against a TTL, and a look
// at 5,000 leases takes less than a thousandth of it.
const suspendInterval = time.Second

// suspendWatch looks for suspends of the machine, one goroutine for all leases that a keeper holds. The
// timers of the heartbeats run on the monotonic clock, which on several systems stops during a suspend, so
// they fire as late as the suspend lasted. The goroutine runs only while the keeper holds a lease.
type suspendWatch struct {
	mu   sync.Mutex
	held map[*Held]struct{}
	stop chan struct{} // ends the goroutine
}

// watch begins to watch a lease, until the result is called.
func (w *suspendWatch) watch(h *Held) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.held) == 0 {
		w.held, w.stop = map[*Held]struct{}{}, make(chan struct{})
		go w.work(h.keeper.wall, w.stop)
	}
	w.held[h] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.held, h); len(w.held) == 0 {
			close(w.stop)
		}
	}
}

func (w *suspendWatch) work(wall func() time.Time, stop <-chan struct{}) {
	ticker := time.NewTicker(suspendInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			w.look(time.Now(), wall())
		}
	}
}

// look requests a renewal of each lease whose trusted time is over according to the wall clock.
func (w *suspendWatch) look(now, wall time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := range w.held {
		h.mu.Lock()
		h.renewIfSuspended(now, wall)
		h.mu.Unlock()
	}
}

// renewIfSuspended requests a renewal at once and reports true if the trusted time is over according to
// the wall clock. The caller holds mu.
func (h *Held) renewIfSuspended(now, wall time.Time) bool {
	if !h.trust.maybeSuspended(now, wall.Round(0)) {
		return false
	}
	select {
	case h.renewNow <- struct{}{}:
	default: // a renewal is requested already
	}
	return true
}
