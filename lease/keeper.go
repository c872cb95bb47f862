package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Store grants, renews and releases leases with the guarantees and errors of the methods of the
// same names in [runstore.RunStore]. Every RunStore is a Store; so is a client of a server that
// grants leases. If a Store also implements runstore.RunNotifier, a waiting keeper subscribes to
// its wake-ups.
type Store interface {
	AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error)
	RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error)
	ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error)
}

// Keeper holds leases of one store while pieces of work run. It is safe for concurrent use and
// needs no closing.
type Keeper struct {
	store Store
	opts  Options
	wall  func() time.Time // the wall clock; tests replace it
	in    *instruments

	suspends suspendWatch
}

// New returns a keeper on store; nil Options mean the defaults. Its error lists every invalid
// option and matches runstore.ErrInvalid; it matches runstore.ErrUnsupported for a Handoff on a store
// without the methods that [Keeper.RequestHandoff] names, and for a Grace on one without GetRun.
func New(store Store, opts *Options) (*Keeper, error) {
	resolved, err := opts.Resolve()
	if err != nil {
		return nil, err
	}
	k := &Keeper{store: store, opts: resolved, wall: time.Now, in: newInstruments(resolved.MeterProvider)}
	if resolved.Handoff != NoHandoff {
		if _, err := k.handoffStore(); err != nil {
			return nil, err
		}
	}
	if _, ok := runstore.As[headReader](store); resolved.Grace > 0 && !ok {
		return nil, &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "grace", Problem: fmt.Sprintf("%T has no method GetRun", store)}
	}
	return k, nil
}

// Granted is a lease with the time from which its holder counts its trust.
type Granted struct {
	Lease runstore.Lease
	// Sent is this process's time.Now() just before it sent the request that won the lease. If Sent
	// is zero, the keeper renews the lease before the work starts.
	Sent time.Time

	replayed bool // an earlier copy of the request made the grant
}

// Work is the function that runs under a lease. It must return soon after ctx has ended;
// context.Cause(ctx) is a [LostError] if the lease was lost before ctx ended for another reason. Work
// that goes on after that, to clean up, sees a loss by [Held.Done]. Every write it makes must present
// [Held.Fence].
type Work func(ctx context.Context, held *Held) error

// Do acquires the lease as [Keeper.Acquire] does and runs work under it as [Keeper.Hold] does.
func (k *Keeper) Do(ctx context.Context, req runstore.AcquireRequest, work Work) error {
	granted, err := k.Acquire(ctx, req)
	if err != nil {
		return err
	}
	return k.Hold(ctx, granted, work)
}

// Hold runs work under a lease that was granted before, renews the lease while work runs, and
// releases it afterwards.
//
// The work's context ends when ctx ends or when the lease is lost. The lease counts as lost at the
// latest when the trusted time is over: TTL less Margin after the last successful request was sent,
// which is before the expiry on the store clock. When ctx ends, the lease is kept until work has
// returned, so that work can clean up; [Held.Done] then reports a loss. A renewal that fails with an error
// that says nothing about the grant, such as runstore.ErrInvalid from a server that does not accept the
// client's credentials, is repeated while the lease is trusted.
//
// The release uses a context of its own, bounded by Options.ReleaseTimeout, and applies the writes
// of [Held.ReleaseWith]. After [Held.Abandon] and after a panic, which continues, the lease is revoked
// instead, without these writes: it is free, and the next holder learns that it was not released
// (runstore.EndRevoked). After a loss by expiry the lease is revoked, too, because it may still be live
// and block other contenders. A lease that the store has refused is left as it is.
//
// If the lease was held to the end, the error is the one that work returned, joined with a
// [ReleaseError] if the release failed. If the lease was lost, the error is a [LostError], even if
// work returned nil. The work's own error is joined to it, unless that error only passes on the end
// of the context. It does not matter whether a heartbeat, a write of the work or the release met
// the refusal first.
//
// Hold does not run work if ctx has ended already, or ends while the lease is renewed before the work;
// the error is then the context's cause, joined with a ReleaseError if the revocation failed. It does
// not run work either if the trusted time is over and the lease cannot be renewed; the error is
// then a LostError, whose Reason is the first error that no repeat mends. In all these cases the lease is
// revoked, unless the store has refused it, so that the next holder does not skip the recovery of what the
// holder before this one left.
//
// A revocation is a commit. On a Store without the method Commit of [runstore.RunStore], a lease that
// would be revoked is left to expire.
func (k *Keeper) Hold(ctx context.Context, granted Granted, work Work) (err error) {
	h := k.newHeld(granted)
	end := h.measure(ctx)
	defer func() { end(err) }() // after the release
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), h.revoke(ctx))
	}
	if err := h.ensureTrusted(ctx); err != nil {
		return err
	}
	defer k.suspends.watch(h)()
	ctx, h.cancel = context.WithCancelCause(ctx)
	go h.heartbeatLoop(context.WithoutCancel(ctx))

	// work runs on the caller's goroutine, so a panic keeps its stack and needs no recovery: the
	// deferred function ends the lease while the panic unwinds.
	returned := false
	defer func() {
		if !returned {
			h.Abandon()
			_ = h.finish(ctx, nil) // report the panic, not the failed revocation
		}
	}()
	err = work(ctx, h)
	returned = true
	return h.finish(ctx, err)
}

// LeaseVector describes a lease that a [Keeper] holds, as far as it differs from its engine's.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the lease of a run",
		Payload:     "the engine's",
		Enforcement: "by the store, at each write with Held.Fence; the work ends before the expiry",
		Token:       "the run's",
		Handoff:     "gap or overlap, as Options.Handoff says; else release and acquire",
	}
}
