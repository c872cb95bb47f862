package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Held is a lease that a [Keeper] holds while a piece of work runs. It is safe for concurrent use.
type Held struct {
	keeper  *Keeper
	reactor runstore.Reactor // of the grant
	cancel  context.CancelCauseFunc

	over     chan struct{} // closed when finished is set
	workDone chan struct{} // closed when the work has returned
	loopDone chan struct{} // closed when heartbeatLoop has returned
	renewNow chan struct{} // requests a renewal at once
	requests chan struct{} // reports that a successor requests the lease
	// pending and granting are the renewal and the grant to a successor in flight when heartbeatLoop
	// returned, if any. They are read after loopDone.
	pending  chan renewal
	granting chan grantReply
	// background has the goroutines of a handoff. Their context ends when heartbeatLoop returns.
	background sync.WaitGroup

	mu       sync.Mutex
	lease    runstore.Lease
	trust    trust
	finished bool  // the lease is lost or handed off, or the work has returned
	lost     error // a *LostError
	final    runstore.Writes
	abandon  bool        // the lease is to be revoked, not released
	next     *checkpoint // the checkpoint that no renewal has carried yet
	sending  *checkpoint // the checkpoint of the renewal in flight, or of unknown outcome
	bare     bool        // the store refused a checkpoint, and no renewal has succeeded since
	handing  handing
}

func (k *Keeper) newHeld(granted Granted) *Held {
	h := &Held{
		keeper: k, lease: granted.Lease, reactor: granted.Lease.Reactor,
		over: make(chan struct{}), workDone: make(chan struct{}), loopDone: make(chan struct{}),
		renewNow: make(chan struct{}, 1), requests: make(chan struct{}, 1),
	}
	if !granted.Sent.IsZero() && !granted.Sent.After(time.Now()) {
		// Round(0) strips the monotonic reading and leaves the wall clock.
		h.trust = trust{}.extend(granted.Sent, granted.Sent.Round(0), granted.Lease.TTL, k.opts.Margin)
	}
	return h
}

// Lease returns the lease as it was granted or last renewed.
func (h *Held) Lease() runstore.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// Fence returns the fence that a write must present to be applied under this lease. It does not
// change while the lease is held.
func (h *Held) Fence() runstore.Fence { return h.Lease().Fence() }

// Trusted reports whether the holder may still rely on its lease, and until when, on the monotonic
// clock. It reads the clocks at each call, so a process that was stopped gets the right answer even
// before its timers have fired. False is final once the lease is lost: Done is closed, or the work's
// context has ended. Before that a renewal may succeed, also one whose reply arrives after the trusted
// time, and Trusted returns true again.
//
// If the wall clock has advanced further than the monotonic clock, by enough to end the trusted
// time, then the machine was suspended or its wall clock was set. Trusted then returns false and
// requests a renewal at once. It returns true again after that renewal succeeds.
//
// While a grant to a successor is in flight, the store may have made it. Trusted then returns false,
// and true again if the store refuses the grant.
//
// True does not permit a write without a fence: the process may be stopped right after the call.
func (h *Held) Trusted() (until time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.finished || h.handing.doubt != nil || h.trust.over(now) {
		return h.trust.until, false
	}
	if h.renewIfSuspended(now, h.keeper.wall()) {
		return h.trust.until, false
	}
	return h.trust.until, true
}

// Done returns a channel that is closed when the lease is lost or handed off, or when the work has
// returned. It reports a loss also to work whose context has ended before: because ctx ended, or
// because a successor has requested the lease (Gap). The result of [Keeper.Hold] has the reason.
func (h *Held) Done() <-chan struct{} { return h.over }

// ReleaseWith sets the writes to apply with the release, in one atomic step, once the work has
// returned with or without an error: for example the last event and the run's status. They replace
// the writes of an earlier call. They are not applied if the lease was lost before, if the work panics, or if
// the lease was handed off while the work ran. If a successor has requested the lease, they are applied
// with a renewal before the handoff, or with a release if the store does not renew the lease for want of
// progress, or refuses a grant that was in doubt when the work returned. If a later step then fails or loses
// the lease, the result of [Keeper.Hold] matches runstore.ErrUnknownOutcome.
//
// Use ReleaseWith to end the run. If the work committed a batch of its own that releases the lease,
// the next heartbeat would find the lease gone and report it as lost.
func (h *Held) ReleaseWith(w runstore.Writes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.final = w
}

// ensureTrusted renews the lease before the work starts if too much time has passed since the
// grant. It returns an error if the work must not start.
func (h *Held) ensureTrusted(ctx context.Context) error {
	if _, ok := h.Trusted(); ok { // the grant is recent enough
		return nil
	}
	var r renewal
	err := retryBounded(ctx, h.keeper.opts.TTL-h.keeper.opts.Margin, h.lease.Run, "renew lease", func(ctx context.Context) error {
		r = h.renew(ctx)
		return r.err
	})
	reason, last := error(ErrExpired), err
	switch {
	case err == nil:
		if h.applyRenewal(r); ctx.Err() == nil {
			return nil
		}
	case endsLease(err):
		return &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: err}
	case !transient(err): // no work waits for a repeat to succeed
		reason, last = err, nil
	}
	revoked := h.revoke(ctx) // the lease may still be live, and this holder will not use it
	if ctx.Err() != nil {
		return join(context.Cause(ctx), revoked)
	}
	return &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: reason, Last: last}
}

// finish stops the heartbeats, releases the lease and combines the errors of the work, the loss and
// the release.
func (h *Held) finish(ctx context.Context, err error) error {
	returned := time.Now()
	deadline := returned.Add(h.keeper.opts.ReleaseTimeout)
	h.mu.Lock()
	h.markOver()
	h.mu.Unlock()
	h.cancel(ErrEnded)
	close(h.workDone)
	<-h.loopDone
	h.awaitGrant(returned.Add(h.keeper.opts.ReleaseTimeout / 2))

	h.mu.Lock()
	lost, final, abandon, requested := h.lost, h.final, h.abandon, !h.handing.found.IsZero()
	granting := h.handing.done != nil || h.handing.doubt != nil
	h.mu.Unlock()
	var handed *HandedOffError
	var notHanded, failed error
	var applied bool // the final writes are stored or, after an error, may be
	if lost == nil && requested && (!abandon || granting) {
		if handed, applied, notHanded = h.handOff(ctx, returned, final); applied {
			final = runstore.Writes{}
		}
	}
	// The work may have met the refusal of a fence that it had handed off.
	if reason := h.refusalOf(err); lost == nil && handed == nil && reason != nil {
		lost = h.lostError(reason)
	}
	switch {
	case handed != nil:
	case lost == nil && notHanded != nil:
		if h.lostBy(notHanded) {
			lost = h.lostError(notHanded)
		} else {
			failed = h.releaseError(notHanded)
		}
	case lost == nil && abandon:
		failed = h.revoke(ctx)
	case lost == nil:
		if released := h.release(ctx, final); leaseGone(released) {
			lost = h.lostError(released)
		} else {
			failed = released
		}
	case errors.Is(lost, ErrExpired):
		_ = h.revoke(ctx) // report the loss, not the failed revocation
	}
	if applied && (lost != nil || failed != nil) { // alone, these report that the final writes were not applied
		failed = join(failed, &runstore.OpError{
			Op: "release lease", Run: h.Lease().Run, Err: runstore.ErrUnknownOutcome,
			Cause: errors.New("the final writes are stored or may be, and the end of the lease is not confirmed"),
		})
	}
	h.awaitPending(deadline)
	ended := ErrEnded
	if lost != nil {
		ended = lost
	}
	h.mu.Lock()
	h.endCheckpoints(ended)
	h.mu.Unlock()
	switch {
	case handed != nil && (h.refusalOf(err) != nil || isHandoff(err) || errors.Is(err, context.Canceled)):
		return handed
	case handed != nil:
		return join(handed, err)
	case lost == nil || errors.Is(err, lost):
		return join(err, failed)
	case errors.Is(err, context.Canceled) || err != nil && errors.Is(lost, err):
		return join(lost, failed)
	default:
		return join(join(lost, err), failed)
	}
}

// awaitPending waits, until the deadline, for the requests in flight, so that a caller that closes the
// store next finds none. Their contexts have ended.
func (h *Held) awaitPending(deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	if h.pending != nil {
		select {
		case r := <-h.pending:
			if r.err == nil {
				h.reportCheckpoint(r.carried, nil)
			}
		case <-timer.C:
			return
		}
	}
	if h.keeper.opts.Handoff == NoHandoff {
		return
	}
	ended := make(chan struct{})
	go func() {
		h.background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// refusalOf returns the store's error inside err, an error of the work, if the store refused this
// very grant; else nil. The work may meet the refusal before the next heartbeat does. A refusal of
// another run's grant, or of another grant of this run, does not count.
func (h *Held) refusalOf(err error) error {
	var op *runstore.OpError
	if !errors.As(err, &op) || !leaseGone(op) {
		return nil
	}
	l := h.Lease()
	var fenced *runstore.FencedError
	if op.Run != l.Run || errors.As(op, &fenced) && fenced.Presented != l.Token {
		return nil
	}
	return op
}

// leaseGone reports whether err is the store's definite answer that a grant is not the run's
// current one.
func leaseGone(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound:
		return true
	default:
		return false
	}
}

func (h *Held) lostError(reason error) error {
	l := h.Lease()
	return &LostError{Run: l.Run, Token: l.Token, Reason: reason}
}

// release ends the grant and applies the writes, even if ctx has ended. Repeating is safe: until a
// later grant, the store answers a second release as it answered the first.
func (h *Held) release(ctx context.Context, writes runstore.Writes) error {
	req := runstore.ReleaseRequest{Fence: h.Fence(), Writes: writes}
	return h.end(ctx, func(ctx context.Context) error {
		_, err := h.keeper.store.ReleaseLease(ctx, req)
		return err
	})
}

// end ends the grant by call, which may be repeated, even if ctx has ended. If one attempt has an
// unknown outcome, a later refusal does not resolve it, so the result is an unknown outcome too.
func (h *Held) end(ctx context.Context, call func(context.Context) error) error {
	l := h.Lease()
	unknown, err := retryWrite(context.WithoutCancel(ctx), h.keeper.opts.ReleaseTimeout, l.Run, "release lease", call)
	switch {
	case err == nil:
		return nil
	case unknown:
		err = unresolved("release lease", l.Run, err)
	}
	return h.releaseError(err)
}

func (h *Held) releaseError(err error) error {
	l := h.Lease()
	return &ReleaseError{Run: l.Run, Token: l.Token, Err: err}
}

// join joins two errors. It returns a single error unchanged.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return errors.Join(a, b)
	}
}
