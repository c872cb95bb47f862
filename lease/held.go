package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Held is a lease that a [Keeper] holds for a piece of work. It is safe for
// concurrent use.
type Held struct {
	keeper *Keeper
	cancel context.CancelCauseFunc

	ended   chan struct{} // closed when the work is over
	kept    chan struct{} // closed when the heartbeats are over
	doubt   chan struct{} // asks for a renewal at once
	pending chan renewal  // the renewal that was in flight then, if any; read after kept

	mu    sync.Mutex
	lease runstore.Lease
	trust trust
	over  bool  // lost, or the work has ended
	lost  error // a *LostError
	final runstore.Writes
}

func (k *Keeper) held(granted Granted) *Held {
	h := &Held{
		keeper: k, lease: granted.Lease,
		ended: make(chan struct{}), kept: make(chan struct{}), doubt: make(chan struct{}, 1),
	}
	if !granted.Sent.IsZero() && !granted.Sent.After(time.Now()) {
		// The wall clock of that moment is the other half of Sent.
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

// Fence returns what a write must present to be made under this lease. It is
// the same for as long as the lease is held.
func (h *Held) Fence() runstore.Fence { return h.Lease().Fence() }

// Trusted reports whether the holder may still believe in its lease, and until
// when, on the monotonic clock. It looks at the clocks at each call, so that a
// process that was stopped gets the true answer even before its timers have
// fired; false is final when the trusted time has passed or the lease was lost.
//
// When the wall clock has moved further than the monotonic one, so far that
// the trusted time would be over, the machine was suspended or its clock was
// set. Then Trusted reports false and asks for a renewal at once, and true
// again when that has succeeded.
//
// A true answer is no permission to write without a fence: the process may be
// stopped right after it.
func (h *Held) Trusted() (until time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.over || h.trust.over(now) {
		return h.trust.until, false
	}
	if h.trust.doubtful(now, h.keeper.wall().Round(0)) {
		select {
		case h.doubt <- struct{}{}:
		default: // one is asked for already
		}
		return h.trust.until, false
	}
	return h.trust.until, true
}

// ReleaseWith sets the writes that are applied with the release when the work
// has returned, whatever it returned, in one atomic step: the last event, the
// run's status. They replace those of an earlier call. They are not applied
// when the lease was lost or the work panics.
//
// This is how work ends its run. A batch of its own that releases the lease
// would make the next heartbeat find the lease gone, and report it as lost.
func (h *Held) ReleaseWith(w runstore.Writes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.final = w
}

// withdraw forgets the final writes.
func (h *Held) withdraw() { h.ReleaseWith(runstore.Writes{}) }

// begin renews a lease that is not trusted before the work begins.
func (h *Held) begin(ctx context.Context) error {
	if _, ok := h.Trusted(); ok { // it may be long since the grant
		return nil
	}
	var r renewal
	err := insist(ctx, h.keeper.opts.TTL-h.keeper.opts.Margin, h.lease.Run, "renew lease", func(ctx context.Context) error {
		r = h.renew(ctx)
		return r.err
	})
	switch {
	case err == nil:
		h.renewed(r)
		return nil
	case !transient(err):
		return &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: err}
	}
	_ = h.release(ctx, runstore.Writes{}) // it may still stand, and nobody will drive it
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &LostError{Run: h.lease.Run, Token: h.lease.Token, Reason: ErrExpired, Last: err}
}

// end is the end of the work: it stops the heartbeats, releases the lease and
// makes one error of what happened.
func (h *Held) end(ctx context.Context, err error) error {
	deadline := time.Now().Add(h.keeper.opts.ReleaseTimeout)
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	h.cancel(ErrEnded)
	close(h.ended)
	<-h.kept

	h.mu.Lock()
	lost, final := h.lost, h.final
	h.mu.Unlock()
	if reason := h.refused(err); lost == nil && reason != nil {
		lost = h.lostTo(reason)
	}
	switch {
	case lost == nil:
		if released := h.release(ctx, final); disowned(released) {
			lost = h.lostTo(released)
		} else if released != nil {
			err = join(err, released)
		}
	case errors.Is(lost, ErrExpired):
		_ = h.release(ctx, runstore.Writes{}) // the loss is the news
	}
	if h.pending != nil {
		// Its context has ended. A caller who closes the store next should find
		// nothing in flight, unless the store ignores contexts.
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-h.pending:
		case <-timer.C:
		}
	}
	switch {
	case lost == nil || errors.Is(err, lost):
		return err
	case errors.Is(err, context.Canceled) || err != nil && errors.Is(lost, err):
		return lost
	default:
		return join(lost, err)
	}
}

// refused returns the store's error if err, an error of the work, tells that the store
// refused this very grant: a work may learn so before the next heartbeat does, and then
// no release has to be answered. A refusal of another run's grant, or of another grant
// of this run, is none.
func (h *Held) refused(err error) error {
	var op *runstore.OpError
	if !errors.As(err, &op) || !disowned(op) {
		return nil
	}
	l := h.Lease()
	var fenced *runstore.FencedError
	if op.Run != l.Run || errors.As(op, &fenced) && fenced.Presented != l.Token {
		return nil
	}
	return op
}

// disowned reports whether err is a store's definite answer that a grant is not, or no
// longer, the run's current one.
func disowned(err error) bool {
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrLeaseExpired, runstore.ErrStoreBehind, runstore.ErrNotFound:
		return true
	default:
		return false
	}
}

func (h *Held) lostTo(reason error) error {
	l := h.Lease()
	return &LostError{Run: l.Run, Token: l.Token, Reason: reason}
}

// release ends the grant, with the writes, whatever has become of ctx. Repeating
// is safe: the store answers the second release as it answered the first, until a
// later grant. So once the outcome of one attempt is unknown, what later ones are
// answered says nothing about that one.
func (h *Held) release(ctx context.Context, writes runstore.Writes) error {
	l := h.Lease()
	req := runstore.ReleaseRequest{Fence: l.Fence(), Writes: writes}
	var unknown atomic.Bool
	err := insist(context.WithoutCancel(ctx), h.keeper.opts.ReleaseTimeout, l.Run, "release lease", func(ctx context.Context) error {
		_, err := h.keeper.store.ReleaseLease(ctx, req)
		if runstore.OutcomeOf(err) == runstore.Unknown {
			unknown.Store(true)
		}
		return err
	})
	switch {
	case err == nil:
		return nil
	case unknown.Load() && runstore.OutcomeOf(err) != runstore.Unknown:
		err = &runstore.OpError{Op: "release lease", Run: l.Run, Err: runstore.ErrUnknownOutcome, Cause: err}
	}
	return &ReleaseError{Run: l.Run, Token: l.Token, Err: err}
}

// join joins two errors and leaves a single one as it is.
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
