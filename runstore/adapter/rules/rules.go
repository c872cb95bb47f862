// Package rules implements the decisions that every adapter must make alike: whether a fence is
// current, whether a lease may be granted, which token comes next. The functions are pure. An
// adapter passes what its engine read, inside the engine's own atomic step, and gets one of the
// contract's errors.
//
// Where an engine checks the fence natively (a WHERE clause, a predicate), the package explains a
// refusal. Where the adapter reads inside a transaction, the package is the check.
package rules

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Head is the state that an engine keeps of a run: the public head, and the grant id, which only a
// lease reveals.
type Head struct {
	runstore.Run
	// Grant is the id of the current grant, or of the last one when the lease is free; State is
	// the state of that grant. Holder is zero unless State is Current.
	Grant runstore.GrantID
	State GrantState
	// Former are the grants before that one. An adapter reads them for a request that may make a
	// grant, and stores them again after [Head.Granted].
	Former FormerGrants
	// Terms are the terms before that of the last grant. An adapter reads and stores them as it
	// does Former.
	Terms TermList
	// Last has what Holder no longer says of the last grant once that has ended ([Head.EndedAt]):
	// the owner, the reactor, the time of the grant and that of its end. It is zero while the grant
	// is current, and has no owner where that is not known.
	Last runstore.Term
	// Epoch is the store's current epoch.
	Epoch runstore.Epoch
}

// GrantState is the state of a run's last grant. The numbers are stored.
type GrantState int

// The states of a grant.
const (
	// None: the run was never leased.
	None GrantState = iota
	// Current: the holder may write, expired or not.
	Current
	// Released: the holder released the lease.
	Released
	// Revoked: the grant was ended without its fence: by a batch with Release and without the
	// fence, a purge, or a new epoch.
	Revoked
)

// Fence checks that f is the current grant of the run at now, on the store clock (I3). It returns
// nil, ErrFenced, ErrLeaseExpired or ErrStoreBehind.
func (h Head) Fence(f runstore.Fence, now time.Time) error {
	if known := h.maxKnownToken(); f.Token() > known {
		return &runstore.StoreBehindError{Field: "token", Presented: int64(f.Token()), Known: int64(known)}
	}
	if h.State != Current || h.Token != f.Token() || h.Holder.Owner != f.Owner() || h.Grant != f.Grant() {
		return &runstore.FencedError{Presented: f.Token(), Current: h.Token, Holder: h.Holder}
	}
	if h.Holder.Strict && !now.Before(h.ExpiresAt) {
		return runstore.ErrLeaseExpired
	}
	return nil
}

// Guards checks that all of g hold at now. version returns a record's current version. The fence is
// checked first, so that a fenced-out holder gets ErrFenced and not a conflict of versions.
func (h Head) Guards(g runstore.Guards, now time.Time, version func(runstore.RecordKey) (runstore.Version, error)) error {
	if !g.Fence.IsZero() {
		if err := h.Fence(g.Fence, now); err != nil {
			return err
		}
	}
	if err := h.LastToken(g); err != nil {
		return err
	}
	if err := h.Statuses(g); err != nil {
		return err
	}
	if next := h.LastSeq + 1; g.NextSeq != 0 && g.NextSeq != next {
		return &runstore.ConflictError{Guard: "seq", NextSeq: next, Status: h.Status}
	}
	for _, want := range g.Versions {
		current, err := version(want.Key)
		if err != nil {
			return err
		}
		if current != want.Version {
			return &runstore.ConflictError{
				Guard: "version", Key: want.Key, Want: want.Version, Current: current,
				NextSeq: h.LastSeq + 1, Status: h.Status,
			}
		}
	}
	return nil
}

// LastToken checks the run's last token against g.
//
// Errors: ErrConflict; ErrStoreBehind where g requires a token above any that the store knows.
func (h Head) LastToken(g runstore.Guards) error {
	if g.Token == nil || *g.Token == h.Token {
		return nil
	}
	if known := h.maxKnownToken(); *g.Token > known {
		return &runstore.StoreBehindError{Field: "token", Presented: int64(*g.Token), Known: int64(known)}
	}
	return &runstore.ConflictError{Guard: "token", Token: h.Token, NextSeq: h.LastSeq + 1, Status: h.Status}
}

// maxKnownToken returns the highest token of the run that the store can have granted.
func (h Head) maxKnownToken() runstore.Token { return max(h.Token, h.Epoch.Floor()) }

// Statuses checks that the run's status is one of those in g. It returns nil or ErrConflict.
func (h Head) Statuses(g runstore.Guards) error {
	if len(g.Statuses) == 0 {
		return nil
	}
	for _, s := range g.Statuses {
		if s == h.Status {
			return nil
		}
	}
	return &runstore.ConflictError{Guard: "status", NextSeq: h.LastSeq + 1, Status: h.Status}
}

// Acquire decides whether the lease may be granted at now. It returns nil, ErrLeaseHeld, or
// ErrFenced for a grant that has ended already, so that a late copy of a request cannot take the
// lease for a holder that is gone. ErrFenced takes precedence over ErrLeaseHeld, because waiting
// would not help.
//
// A fence among the request's guards is the holder's consent: with it a live lease is no obstacle,
// and Guards, which the caller calls next, checks that fence. replay is true when the request's own
// grant is current: the request was applied, and its reply lost.
func (h Head) Acquire(req runstore.AcquireRequest, now time.Time) (replay bool, err error) {
	if req.Grant != "" && req.Grant == h.Grant && h.State == Current {
		return true, nil
	}
	if err := h.NewGrant(req.Grant); err != nil {
		return false, err
	}
	if h.Live(now) && req.Preempt == "" && !consents(req) {
		return false, &runstore.LeaseHeldError{Holder: h.Holder, Remaining: h.ExpiresAt.Sub(now)}
	}
	return false, nil
}

// Release decides whether f may end its grant at now. replay is true when f has already ended it:
// the release was applied, and its reply lost.
func (h Head) Release(f runstore.Fence, now time.Time) (replay bool, err error) {
	if h.State == Released && h.Token == f.Token() && h.Grant == f.Grant() {
		return true, nil
	}
	return false, h.Fence(f, now)
}

// Granted returns the head after a grant at now, which [Head.Acquire] and [Head.Guards] have
// allowed. The previous grant is added to the former ones, and its term to the list of terms. The
// reason to preempt is kept only if a live lease was preempted.
func (h Head) Granted(req runstore.AcquireRequest, now time.Time) Head {
	spec := req.LeaseSpec
	holder := runstore.Holder{
		Owner: spec.Owner, Reactor: spec.Reactor, Strict: spec.Strict, TTL: spec.TTL, MaxStall: spec.MaxStall,
		Token: h.Token.Next(h.Epoch), ExpiresAt: now.Add(spec.TTL).Truncate(runstore.TimePrecision),
		GrantedAt: now, RenewedAt: now, ProgressedAt: now, Former: h.endedBy(req, now),
	}
	if holder.Former == runstore.EndPreempted {
		holder.Preempted = runstore.Preempted{From: h.Holder.Owner, Reason: req.Preempt}
	}
	if h.State != None {
		h.Former = h.Former.With(h.Grant)
	}
	if last, ok := h.lastTerm(); ok {
		if h.State == Current {
			last.End, last.EndedAt, last.Reason = holder.Former, now, holder.Preempted.Reason
		}
		h.Terms = h.Terms.With(last)
	}
	h.Last = runstore.Term{}
	h.Holder, h.Token, h.ExpiresAt = holder, holder.Token, holder.ExpiresAt
	h.Grant, h.State = spec.Grant, Current
	return h
}

// endedBy returns how the run's last grant has ended, or how the grant of req at now ends it.
func (h Head) endedBy(req runstore.AcquireRequest, now time.Time) runstore.GrantEnd {
	switch {
	case h.State == None:
		return runstore.EndNone
	case h.State == Released:
		return runstore.EndReleased
	case h.State == Revoked:
		return runstore.EndRevoked
	case consents(req):
		return runstore.EndHandedOff
	case h.Live(now):
		return runstore.EndPreempted
	default:
		return runstore.EndExpired
	}
}

// consents reports whether a request carries the fence of the grant that it would end.
func consents(req runstore.AcquireRequest) bool {
	return !runstore.GuardsOf(req.Guards...).Fence.IsZero()
}

// Renew checks a renewal at now: the fence, and progress (I13). Writes with an event or a record
// count as progress themselves.
//
// Errors: those of [Head.Fence], ErrNoProgress.
func (h Head) Renew(req runstore.RenewRequest, now time.Time) error {
	if err := h.Fence(req.Fence, now); err != nil {
		return err
	}
	stalled := now.Sub(h.Holder.ProgressedAt)
	if most := h.Holder.MaxStall; most > 0 && stalled > most && !IsProgress(req.Writes) {
		return &runstore.NoProgressError{Stalled: stalled, MaxStall: most}
	}
	return nil
}

// IsProgress reports whether writes under a fence count as progress (I13): they append an
// event or change a record.
func IsProgress(w runstore.Writes) bool { return len(w.Events) > 0 || len(w.Records) > 0 }

// Renewed returns the head after a renewal at now. It never shortens a lease.
func (h Head) Renewed(ttl time.Duration, now time.Time) Head {
	h.Holder.TTL, h.Holder.RenewedAt = ttl, now
	if until := now.Add(ttl).Truncate(runstore.TimePrecision); until.After(h.ExpiresAt) {
		h.ExpiresAt = until
		h.Holder.ExpiresAt = until
	}
	return h
}

// RenewedBefore returns the lease for the repeat of a renewal with writes: the present lease if the
// grant is current, else the lease that the first copy returned.
func (h Head) RenewedBefore(req runstore.RenewRequest, first runstore.Committed) runstore.Lease {
	f := req.Fence
	if h.State == Current && h.Token == f.Token() && h.Grant == f.Grant() {
		return h.Lease(req.TTL)
	}
	return FormerLease(h.ID, runstore.LeaseSpec{Owner: f.Owner(), TTL: req.TTL, Grant: f.Grant()}, f.Token(), first)
}

// EndedAt is Ended for a store that keeps terms: Last describes the grant that has ended at now. If
// the grant had ended before, nothing changes.
func (h Head) EndedAt(state GrantState, now time.Time) Head {
	if last, ok := h.lastTerm(); ok && h.State == Current {
		h.Last = runstore.Term{Owner: last.Owner, Reactor: last.Reactor, GrantedAt: last.GrantedAt, EndedAt: now}
	}
	return h.Ended(state)
}

// Ended returns the head after the current grant was ended: Released by its holder, or Revoked.
// Token, grant id and expiry stay.
func (h Head) Ended(state GrantState) Head {
	h.Holder = runstore.Holder{}
	if h.State == Current {
		h.State = state
	}
	return h
}

// Lease returns the current grant as a lease of its holder.
func (h Head) Lease(ttl time.Duration) runstore.Lease {
	return runstore.Lease{
		Run: h.ID, Owner: h.Holder.Owner, Reactor: h.Holder.Reactor, Token: h.Holder.Token, Grant: h.Grant,
		TTL: ttl, ExpiresAt: h.ExpiresAt, Strict: h.Holder.Strict,
	}
}

// RunnableFrom returns the first time at which the run is runnable: the later of RunnableAt and the
// expiry of the current grant. Zero means never. runstore.IndexRunnable may place the run at no
// later time.
func (h Head) RunnableFrom() time.Time {
	if h.RunnableAt.IsZero() || h.State != Current || h.ExpiresAt.Before(h.RunnableAt) {
		return h.RunnableAt
	}
	return h.ExpiresAt
}

// Runnable reports whether the run wants a driver at now (see runstore.IndexRunnable).
func (h Head) Runnable(now time.Time) bool {
	return !h.RunnableAt.IsZero() && !h.RunnableAt.After(now) && !h.Live(now)
}

// ExplainingSeq returns the seq that explains a record change: that of the event that r names, or
// the run's last seq when the batch has no event. first is the seq of the batch's first event.
func ExplainingSeq(w runstore.Writes, r runstore.RecordWrite, first, last runstore.Seq) runstore.Seq {
	if len(w.Events) == 0 {
		return last
	}
	return first + runstore.Seq(r.Event)
}
