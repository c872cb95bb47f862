package lease

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// renewal is one attempt to renew, and its answer.
type renewal struct {
	sent, wall time.Time // before the request left
	lease      runstore.Lease
	err        error
}

func (h *Held) renew(ctx context.Context) renewal {
	r := renewal{sent: time.Now(), wall: h.keeper.wall().Round(0)}
	renewed, err := h.keeper.store.RenewLease(ctx, runstore.RenewRequest{Fence: h.Fence(), TTL: h.keeper.opts.TTL})
	r.lease, r.err = renewed.Lease, err
	return r
}

// renewed takes a success in.
func (h *Held) renewed(r renewal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease = r.lease
	h.trust = h.trust.extend(r.sent, r.wall, h.keeper.opts.TTL, h.keeper.opts.Margin)
}

// lose ends the work: the lease is gone, or may be.
func (h *Held) lose(reason, last error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return // the work has returned: the release will tell
	}
	h.over = true
	h.lost = &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: reason, Last: last}
	h.cancel(h.lost)
}

// keep heartbeats until the work has ended or the lease is lost. It is the
// watchdog too, so it never waits for the store: one renewal at a time is in
// flight, on a goroutine of its own.
func (h *Held) keep(ctx context.Context) {
	defer close(h.kept)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	b := newBeat(h)
	defer b.stop()
	for {
		select {
		case <-h.ended:
			h.pending = b.flight
			return
		case r := <-b.flight:
			if !b.answered(r) {
				return
			}
		case <-b.due.C:
			b.start(ctx)
		case <-h.doubt:
			if b.failures == 0 { // else it is being retried, at its own pace
				b.start(ctx)
			}
		case <-b.expiry.C:
			if !b.expired() {
				h.pending = b.flight
				return
			}
		}
	}
}

// beat is the state of the heartbeats of one lease.
type beat struct {
	held     *Held
	due      *time.Timer  // the next renewal
	expiry   *time.Timer  // the end of the trusted time
	flight   chan renewal // the renewal that is in flight; nil when none is
	failures int          // since the last success
	last     error        // the last failure
	begun    bool         // the first heartbeat is planned
}

func newBeat(h *Held) *beat {
	b := &beat{held: h, due: time.NewTimer(0), expiry: time.NewTimer(0)}
	b.succeed() // the grant is the first success
	return b
}

func (b *beat) stop() {
	b.due.Stop()
	b.expiry.Stop()
}

// start sends a renewal, unless one is in flight. Its deadline is short enough
// that another can follow within the trusted time.
func (b *beat) start(ctx context.Context) {
	left := time.Until(b.held.trustedUntil())
	if b.flight != nil || left <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(b.held.keeper.opts.RequestTimeout, left/2))
	flight := make(chan renewal, 1)
	b.flight = flight
	go func() {
		defer cancel()
		flight <- b.held.renew(ctx)
	}()
}

// answered takes an answer in, and reports whether the lease is still held.
func (b *beat) answered(r renewal) bool {
	b.flight = nil
	switch {
	case r.err == nil:
		b.held.renewed(r)
		b.succeed()
	case transient(r.err):
		b.fail(r.err)
	default:
		b.held.lose(r.err, nil)
		return false
	}
	return true
}

// expired ends the lease when the trusted time is over, and reports whether the
// lease is still held. A process that was stopped finds several things due at
// once: an answer that came in the meantime counts, if it still gives trust.
func (b *beat) expired() bool {
	select {
	case r := <-b.flight:
		if !b.answered(r) {
			return false
		}
	default:
	}
	if left := time.Until(b.held.trustedUntil()); left > 0 {
		b.expiry.Reset(left)
		return true
	}
	b.held.lose(ErrExpired, b.last)
	return false
}

// succeed plans the next heartbeat, with jitter: from when the request left, as the trust.
func (b *beat) succeed() {
	h := b.held
	h.mu.Lock()
	sent, until := h.trust.sent, h.trust.until
	every := h.keeper.opts.Heartbeat
	if short := float64(h.lease.TTL) / float64(h.keeper.opts.TTL); short < 1 {
		every = time.Duration(float64(every) * short) // it was granted elsewhere, for less
	}
	h.mu.Unlock()
	every = b.jitter(every)
	b.failures, b.last = 0, nil
	select {
	case <-h.doubt: // answered by this success; if not, Trusted asks again
	default:
	}
	b.due.Reset(time.Until(sent.Add(every)))
	b.expiry.Reset(time.Until(until))
}

// jitter draws the time to the next heartbeat: from 0.5 to 1.0 of the heartbeat for the first of
// a grant, so that leases that were granted together spread over half of it at once, and from 0.8
// for those that follow, so that they go on spreading. It never exceeds the heartbeat.
func (b *beat) jitter(every time.Duration) time.Duration {
	least := every / 5 * 4
	if !b.begun {
		b.begun, least = true, every/2
	}
	return least + rand.N(every-least+1)
}

// fail plans a retry, sooner than a heartbeat.
func (b *beat) fail(err error) {
	every := b.held.keeper.opts.Heartbeat
	wait := min(every/10<<min(b.failures, 8), every/2)
	b.failures++
	b.last = err
	b.due.Reset(jitter(wait))
}

func (h *Held) trustedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trust.until
}
