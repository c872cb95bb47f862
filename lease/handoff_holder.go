package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

var (
	// ErrHandoffRequested is the cause of the work's context when a successor has requested the
	// lease of a holder whose Options.Handoff is Gap. The lease is held until the work has returned.
	ErrHandoffRequested = errors.New("a successor has requested the lease")
	// ErrHandedOff reports that the lease was handed off. Every [HandedOffError] matches it.
	ErrHandedOff = errors.New("lease handed off")
)

// HandedOffError is the result of [Keeper.Hold] when the lease was handed off to a successor. In
// Overlap mode it is also the cause of the work's context, without the durations. It matches
// [ErrHandedOff].
type HandedOffError struct {
	Run runstore.RunID
	// Token is that of the lease that was handed off, and Next that of the successor's.
	Token, Next runstore.Token
	Successor   runstore.Owner
	// Mode is Gap, or Overlap: also if the work did not return within Options.DrainTimeout.
	Mode HandoffMode
	// Drain is the time from when the keeper found the request until the work returned.
	Drain time.Duration
	// Gap is the time from the work's return until the store had answered the grant. The successor
	// begins later, by the time in which it learns of the grant.
	Gap time.Duration
	// Overlap is the time from the request for the grant until the work returned. The store has
	// refused the work's writes since the grant.
	Overlap time.Duration
}

// Error implements error.
func (e *HandedOffError) Error() string {
	return fmt.Sprintf("%v: run %q, token %v, to %q under token %v", ErrHandedOff, string(e.Run), e.Token, string(e.Successor), e.Next)
}

// Is reports whether target is ErrHandedOff.
func (e *HandedOffError) Is(target error) bool { return target == ErrHandedOff }

// isHandoff reports whether err passes on the end of the work's context by a handoff.
func isHandoff(err error) bool {
	return errors.Is(err, ErrHandedOff) || errors.Is(err, ErrHandoffRequested)
}

// handing is the state of a holder's handoff; the mutex of Held guards it.
type handing struct {
	found   time.Time                // when a request was found; zero if none was
	doubt   *runstore.AcquireRequest // a grant that was sent, and that the store may have made or make
	copies  int                      // how often it was sent
	last    bool                     // a grant was in doubt when the work returned: no other is sent after it
	refused runstore.GrantID         // the store refused this grant
	done    *HandedOffError
	sent    time.Time // when the grant was first sent while the work ran; zero if it was not
}

// watchHandoffs looks for requests until ctx ends, and reports them to heartbeatLoop.
func (h *Held) watchHandoffs(ctx context.Context) {
	opts := h.keeper.opts
	store, err := h.keeper.handoffStore()
	if err != nil {
		return // New has refused such a store
	}
	hints := &hints{keeper: h.keeper, run: h.Lease().Run, on: runstore.OnWrite}
	hints.begin(ctx)
	defer hints.end()
	for {
		if found, err := h.lookForRequest(ctx, store); err == nil && found != nil {
			select {
			case h.requests <- struct{}{}:
			default: // one is reported already
			}
		}
		// A run that is written all the time causes wake-ups all the time.
		if !pace.Pause(ctx, opts.Heartbeat/20) || !hints.pause(ctx, pace.Jitter(opts.Heartbeat)) {
			return
		}
	}
}

// lookForRequest returns the stored request, unless the store has refused its grant; nil if there is
// none.
func (h *Held) lookForRequest(ctx context.Context, store handoffStore) (*handoffRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, h.keeper.opts.RequestTimeout)
	defer cancel()
	l := h.Lease()
	found, err := readHandoff(ctx, store, l.Run)
	h.mu.Lock()
	defer h.mu.Unlock()
	if found != nil && (found.spec.Grant == l.Grant || found.spec.Grant == h.handing.refused) {
		return nil, err
	}
	return found, err
}

// grantSuccessor grants the lease to the successor that requests it, under the holder's fence. A
// grant of unknown outcome is repeated as it is by the next call, until the store has evaluated a repeat.
// The result is nil if no successor requests the lease, or if it was abandoned before the grant. A call that
// was made while the work ran (working) sends nothing once the work has returned.
//
// Errors: those of the store; lostBy reports which of them end the lease.
func (h *Held) grantSuccessor(ctx context.Context, working bool) (*HandedOffError, error) {
	store, err := h.keeper.handoffStore()
	if err != nil {
		return nil, err
	}
	for {
		h.mu.Lock()
		req, last := h.handing.doubt, h.handing.last
		h.mu.Unlock()
		if req == nil && last {
			return nil, nil
		}
		if req == nil {
			found, err := h.lookForRequest(ctx, store)
			if err != nil && (transient(err) || h.lostBy(err)) {
				return nil, err
			}
			if found == nil { // there is no request, or none that can be read
				return nil, nil
			}
			// The version keeps the grant from a successor that has withdrawn.
			req = &runstore.AcquireRequest{
				Run: h.Lease().Run, LeaseSpec: found.spec,
				Guards: []runstore.Guard{h.Fence(), runstore.AtVersion(HandoffKey, found.version)},
			}
			req.Writes.Delete(HandoffKey)
		}
		if send, err := h.startGrant(req, working); !send {
			return nil, err
		}
		granted, err := h.keeper.store.AcquireLease(ctx, *req)
		l := h.Lease()
		switch {
		case err == nil && granted.Token == l.Token+1 && granted.Former == runstore.EndHandedOff:
			return &HandedOffError{Run: l.Run, Token: l.Token, Next: granted.Token, Successor: granted.Owner}, nil
		case err == nil && granted.Token > l.Token: // the successor's own request was granted, after the lease had ended
			return nil, &runstore.FencedError{Presented: l.Token, Current: granted.Token}
		case runstore.OutcomeOf(err) == runstore.Unknown:
			return nil, err
		case h.lostBy(err): // the grant stays in doubt, so that the lease is not trusted until the loss is recorded
			return nil, err
		case !h.endDoubt(req, !notEvaluated(err)):
			return nil, unresolved("hand off lease", l.Run, err)
		}
		switch {
		case errors.Is(err, runstore.ErrConflict): // another request, or none
		case transient(err):
			return nil, err
		default: // the store does not make this grant, or made it before the holder's and it has ended
			h.mu.Lock()
			h.handing.refused = req.Grant
			h.mu.Unlock()
		}
	}
}

// startGrant records that the grant is under way, and reports whether it may be sent: a lease that was
// abandoned before is not handed off, and a grant that was to be sent while the work ran (working) is left
// to finish once the work has returned (ErrUnavailable).
func (h *Held) startGrant(req *runstore.AcquireRequest, working bool) (send bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case working && h.finished:
		return false, &runstore.OpError{Op: "hand off lease", Run: req.Run, Err: runstore.ErrUnavailable, Cause: ErrEnded}
	case h.abandon && h.handing.doubt == nil:
		return false, nil
	}
	if working && h.handing.sent.IsZero() {
		h.handing.sent = time.Now()
	}
	h.handing.doubt = req
	h.handing.copies++
	return true, nil
}

// endDoubt records that a copy of the grant req was not applied, and reports whether that is true of
// the grant: a store that did not evaluate the copy may have made the grant for an earlier one. The answer to
// another copy may have ended the doubt before.
func (h *Held) endDoubt(req *runstore.AcquireRequest, evaluated bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handing.doubt != req {
		return true
	}
	if !evaluated && h.handing.copies > 1 {
		return false
	}
	h.handing.doubt, h.handing.copies, h.handing.sent = nil, 0, time.Time{}
	return true
}

// lostBy reports whether the store's answer to a grant for a successor ends the holder's lease. A
// refusal of the successor's grant id does not, unless the run was granted after the holder's lease: a store refuses
// the repeat of a grant that has ended once it has forgotten the result.
func (h *Held) lostBy(err error) bool {
	var fenced *runstore.FencedError
	switch {
	case errors.Is(err, runstore.ErrClosed):
		return true
	case !leaseGone(err):
		return false
	case !errors.As(err, &fenced):
		return true
	}
	token := h.Lease().Token
	return fenced.Presented == token || fenced.Current > token
}

// markRequested records that a successor requests the lease, and reports whether none did before.
func (h *Held) markRequested() (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first = h.handing.found.IsZero(); first {
		h.handing.found = time.Now()
	}
	return first
}

// endRequest records that no successor wants the lease any more. In Gap mode the work has been ended,
// and a later successor is granted the lease when it returns.
func (h *Held) endRequest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handing.sent = time.Time{}
	if h.keeper.opts.Handoff == Overlap {
		h.handing.found = time.Time{}
	}
}

// markHandedOff records a handoff while the work runs, reports it to the callers of Checkpoint, and cancels
// the work's context.
func (h *Held) markHandedOff(done *HandedOffError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done.Mode = Overlap
	h.handing.done = done
	if !h.finished {
		h.cancel(done)
		h.markOver()
		h.endCheckpoints(done)
	}
}

// awaitGrant waits, until the deadline, for the grant that was in flight when the work returned. Its
// context has ended.
func (h *Held) awaitGrant(deadline time.Time) {
	if h.granting == nil {
		return
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case r := <-h.granting:
		if r.done != nil {
			h.markHandedOff(r.done)
		}
	case <-timer.C:
	}
}

// handOff completes a handoff after the work has returned at the given time. done is nil if no
// successor requests the lease any more, if the store refuses a grant that was in doubt then, or if the lease may
// not be renewed (ErrNoProgress); the lease is then to be released, without the final writes if applied is true.
// With an error, applied reports that the final writes are stored or may be.
func (h *Held) handOff(ctx context.Context, returned time.Time, final runstore.Writes) (done *HandedOffError, applied bool, err error) {
	ctx = context.WithoutCancel(ctx)
	h.mu.Lock()
	h.handing.last = h.handing.doubt != nil // the final writes are then left to the release
	state := h.handing
	h.mu.Unlock()
	if state.done != nil {
		return state.measured(*state.done, returned), false, nil
	}
	opts, l := h.keeper.opts, h.Lease()
	if !final.IsZero() && state.doubt == nil {
		// The stamps of the final writes name the grant under which they were made.
		req := runstore.RenewRequest{Fence: l.Fence(), TTL: opts.TTL, Writes: final, ID: runstore.NewBatchID()}
		unknown, err := retryWrite(ctx, opts.ReleaseTimeout, l.Run, "store the final writes", func(ctx context.Context) error {
			_, err := h.keeper.store.RenewLease(ctx, req)
			return err
		})
		switch {
		case errors.Is(err, runstore.ErrNoProgress): // neither are these writes, which a release applies all the same
			return nil, false, nil
		case err != nil:
			return nil, unknown, err
		}
		applied = true
	}
	var granted atomic.Pointer[HandedOffError] // a call that was abandoned may still return
	err = retryBounded(ctx, opts.ReleaseTimeout, l.Run, "hand off lease", func(ctx context.Context) error {
		done, err := h.grantSuccessor(ctx, false)
		granted.Store(done)
		return err
	})
	if done = granted.Load(); err != nil || done == nil {
		return nil, applied, err
	}
	return state.measured(*done, returned), applied, nil
}

// measured returns the result of a handoff with its mode and durations, now that the store has
// answered the grant and the work has returned.
func (s handing) measured(done HandedOffError, returned time.Time) *HandedOffError {
	done.Drain = max(0, returned.Sub(s.found))
	if s.sent.IsZero() {
		done.Mode, done.Gap = Gap, time.Since(returned)
	} else {
		done.Mode, done.Overlap = Overlap, max(0, returned.Sub(s.sent))
	}
	return &done
}
