package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// renewal is one attempt to renew the lease, with the store's answer.
type renewal struct {
	sent, wall time.Time   // read before the request was sent
	carried    *checkpoint // the checkpoint that the request carried, if any
	lease      runstore.Lease
	err        error
}

func (h *Held) renew(ctx context.Context) renewal {
	r := renewal{sent: time.Now(), wall: h.keeper.wall().Round(0), carried: h.nextCheckpoint()}
	req := runstore.RenewRequest{Fence: h.Fence(), TTL: h.keeper.opts.TTL}
	if r.carried != nil {
		req.Writes, req.ID = r.carried.writes, r.carried.id
	}
	renewed, err := h.keeper.store.RenewLease(ctx, req)
	r.lease, r.err = renewed.Lease, err
	return r
}

// applyRenewal records a successful renewal and extends the trust. The result of a repeated
// checkpoint may be that of an earlier request, so the trust then counts from the first request that
// may have been applied.
func (h *Held) applyRenewal(r renewal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settleCheckpoint(r.carried, nil)
	h.bare = false
	if r.carried != nil && r.carried.doubt != nil {
		r.sent, r.wall = r.carried.doubt.sent, r.carried.doubt.wall
	}
	h.lease = r.lease
	h.trust = h.trust.extend(r.sent, r.wall, h.keeper.opts.TTL, h.keeper.opts.Margin)
}

// markLost records the loss of the lease, reports it to the callers of Checkpoint, which may be the work
// itself, and cancels the work's context. answered is the checkpoint that the store has refused with the
// renewal, if any. Once the work has returned, only answered is reported: the release reports the loss.
func (h *Held) markLost(reason, last error, answered *checkpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lost := &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: reason, Last: last}
	h.settleCheckpoint(answered, lost)
	if h.finished {
		return
	}
	h.lost = lost
	h.cancel(lost)
	h.markOver()
	h.endCheckpoints(lost)
}

// markOver records that the lease is lost, was handed off or is about to end with the work, for a caller
// that holds mu.
func (h *Held) markOver() {
	if !h.finished {
		h.finished = true
		close(h.over)
	}
}

// heartbeatLoop renews the lease until the work has ended or the lease is lost. It is also the
// watchdog that ends the work at the end of the trusted time and the grace, so it never blocks on the store:
// renewals run on goroutines of their own, one at a time.
func (h *Held) heartbeatLoop(ctx context.Context) {
	defer close(h.loopDone)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	b := newHeartbeats(h)
	defer b.stop()
	if h.keeper.opts.Handoff != NoHandoff {
		h.background.Go(func() { h.watchHandoffs(ctx) })
	}
	for {
		select {
		case <-h.workDone:
			h.pending, h.granting = b.flight, b.grant
			return
		case r := <-b.flight:
			if !b.handleReply(r) {
				return
			}
		case r := <-b.grant:
			if !b.handleGrant(r) {
				return
			}
		case <-h.requests:
			b.handleRequest(ctx)
		case <-b.drained:
			b.handing = true
			b.start(ctx)
		case <-b.due.C:
			b.start(ctx)
		case <-h.renewNow:
			if b.failures == 0 { // otherwise a retry is scheduled already
				b.start(ctx)
			}
		case <-b.expiry.C:
			if !b.checkExpiry() {
				h.pending = b.flight
				return
			}
		}
	}
}

// heartbeats is the schedule of one lease's renewals. Only heartbeatLoop uses it.
type heartbeats struct {
	held     *Held
	due      *time.Timer  // fires when the next renewal is due
	expiry   *time.Timer  // fires at the end of the trusted time, and then at that of the grace
	flight   chan renewal // delivers the renewal in flight; nil if there is none
	failures int          // consecutive failures since the last success
	last     error        // the latest failure
	begun    bool         // whether the first renewal of the grant has been scheduled

	handing bool             // the lease is to be granted to a successor, and not to be renewed
	grant   chan grantReply  // delivers the answer to the grant in flight; nil if there is none
	drained <-chan time.Time // fires when the work has had its DrainTimeout
}

// grantReply is the result of an attempt to grant the lease to a successor.
type grantReply struct {
	done *HandedOffError
	err  error
}

func newHeartbeats(h *Held) *heartbeats {
	b := &heartbeats{held: h, due: time.NewTimer(0), expiry: time.NewTimer(0)}
	b.scheduleNext() // the grant counts as the first success
	return b
}

func (b *heartbeats) stop() {
	b.due.Stop()
	b.expiry.Stop()
}

// start sends a renewal, or the grant to a successor, unless a request is in flight. Its timeout is
// at most half of the trusted time left, or of the grace after it, so that another attempt still fits.
func (b *heartbeats) start(ctx context.Context) {
	left := time.Until(b.held.trustedUntil())
	if left <= 0 {
		left += b.held.grace()
	}
	if b.flight != nil || b.grant != nil || left <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(b.held.keeper.opts.RequestTimeout, left/2))
	if b.handing {
		grant := make(chan grantReply, 1)
		b.grant = grant
		b.held.background.Go(func() {
			defer cancel()
			done, err := b.held.grantSuccessor(ctx, true)
			grant <- grantReply{done, err}
		})
		return
	}
	flight := make(chan renewal, 1)
	b.flight = flight
	go func() {
		defer cancel()
		flight <- b.held.renew(ctx)
	}()
}

// handleReply processes the answer to a renewal and reports whether the lease is still held.
func (b *heartbeats) handleReply(r renewal) bool {
	b.flight = nil
	switch {
	case r.err == nil:
		b.held.applyRenewal(r)
		if b.scheduleNext(); b.handing {
			b.due.Reset(0)
		}
	case transient(r.err) && (r.carried == nil || !errors.Is(r.err, runstore.ErrForgotten)): // the store would apply forgotten writes again
		if c := r.carried; c != nil && c.doubt == nil && runstore.OutcomeOf(r.err) == runstore.Unknown {
			c.doubt = &r
		}
		b.scheduleRetry(r.err)
	case r.carried != nil && !endsLease(r.err):
		b.held.reportCheckpoint(r.carried, r.err)
		b.due.Reset(0) // the lease has not been renewed yet
	case !endsLease(r.err): // it says nothing about the grant: credentials, for example, may become valid again
		b.scheduleRetry(r.err)
		b.expiry.Reset(0) // there may be no grace any more
	default:
		b.held.markLost(r.err, nil, r.carried)
		return false
	}
	return true
}

// handleRequest begins the handoff that a successor has requested.
func (b *heartbeats) handleRequest(ctx context.Context) {
	first := b.held.markRequested()
	switch opts := b.held.keeper.opts; {
	case opts.Handoff == Overlap:
		b.handing = true
		b.start(ctx)
	case first:
		b.held.cancel(ErrHandoffRequested)
		b.drained = time.After(opts.DrainTimeout)
	}
}

// handleGrant processes the answer to the grant to a successor, and reports whether the lease is
// still held.
func (b *heartbeats) handleGrant(r grantReply) bool {
	b.grant = nil
	switch {
	case r.done != nil:
		b.held.markHandedOff(r.done)
		return false
	case r.err == nil: // no successor wants the lease any more
		b.handing = false
		b.held.endRequest()
		b.due.Reset(0)
		return true
	case transient(r.err):
		b.scheduleRetry(r.err)
		b.expiry.Reset(0) // there may be no grace any more
		return true
	default:
		b.held.markLost(r.err, nil, nil)
		return false
	}
}

// checkExpiry marks the lease as lost if the trusted time and the grace are over, and reports whether
// the lease is still held. When a stopped process resumes, a reply and the expiry may be due at once: the reply
// counts if it still extends the trust.
func (b *heartbeats) checkExpiry() bool {
	select {
	case r := <-b.flight:
		if !b.handleReply(r) {
			return false
		}
	case r := <-b.grant:
		if !b.handleGrant(r) {
			return false
		}
	default:
	}
	end := b.held.trustedUntil()
	if b.last == nil || transient(b.last) && !reached(b.last) { // otherwise a contender can reach the store, too, and take the lease
		end = end.Add(b.held.grace())
	}
	if left := time.Until(end); left > 0 {
		b.expiry.Reset(left)
		return true
	}
	b.held.markLost(ErrExpired, b.last, nil)
	return false
}

// scheduleNext schedules the renewal after a success, with jitter. It counts from the moment the
// successful request was sent, as the trust does.
func (b *heartbeats) scheduleNext() {
	h := b.held
	h.mu.Lock()
	sent, until := h.trust.sent, h.trust.until
	every := h.keeper.opts.Heartbeat
	if short := float64(h.lease.TTL) / float64(h.keeper.opts.TTL); short < 1 {
		every = time.Duration(float64(every) * short) // the lease was granted elsewhere, for a shorter TTL
	}
	h.mu.Unlock()
	every = b.jitter(every)
	b.failures, b.last = 0, nil
	select {
	case <-h.renewNow: // this success answers the request; if it does not, Trusted sends another
	default:
	}
	b.due.Reset(time.Until(sent.Add(every)))
	b.expiry.Reset(time.Until(until))
}

// jitter returns the time to the next renewal: 0.5 to 1.0 of the heartbeat for the first renewal of
// a grant, which spreads leases that were granted together over half a heartbeat at once; 0.8 to
// 1.0 for later renewals, which keep spreading. The result never exceeds the heartbeat.
func (b *heartbeats) jitter(every time.Duration) time.Duration {
	least := every / 5 * 4
	if !b.begun {
		b.begun, least = true, every/2
	}
	return least + rand.N(every-least+1)
}

// scheduleRetry schedules the renewal after a failure that does not end the lease: after 1/10 of a heartbeat,
// doubling up to 1/2, with jitter.
func (b *heartbeats) scheduleRetry(err error) {
	every := b.held.keeper.opts.Heartbeat
	wait := min(every/10<<min(b.failures, 8), every/2)
	b.held.renewalFailed()
	b.failures++
	b.last = err
	b.due.Reset(pace.Jitter(wait))
}

// grace returns how long the work goes on after the trusted time. A strict lease has no grace: no
// renewal extends it after its expiry.
func (h *Held) grace() time.Duration {
	if h.Lease().Strict {
		return 0
	}
	return h.keeper.opts.Grace
}

func (h *Held) trustedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trust.until
}
