package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Store grants, renews and releases leases, with the guarantees and the errors of the methods of
// [runstore.RunStore]. Every RunStore is one, and so is a client of a server that grants leases. A
// Store that is a runstore.RunNotifier too is asked for its wake-ups.
type Store interface {
	AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error)
	RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error)
	ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error)
}

// Keeper holds leases of one store for pieces of work. It is safe for
// concurrent use and has nothing to close.
type Keeper struct {
	store Store
	opts  Options
	wall  func() time.Time // the wall clock; tests set it apart from the monotonic one
}

// New returns a keeper on store; nil Options mean the defaults. All faults of
// the options are told in one error, which matches runstore.ErrInvalid.
func New(store Store, opts *Options) (*Keeper, error) {
	resolved, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	return &Keeper{store: store, opts: resolved, wall: time.Now}, nil
}

// Granted is a lease with the moment from which its holder may count.
type Granted struct {
	Lease runstore.Lease
	// Sent is time.Now() of this process before the request left that won the
	// lease. Zero means that it is not known: then the lease is renewed before
	// the work begins.
	Sent time.Time
}

// Work is what is done under a lease. It must return soon after ctx has ended;
// context.Cause(ctx) is then a [LostError] if the lease was lost. Every write that
// it makes must present [Held.Fence].
type Work func(ctx context.Context, held *Held) error

// Do waits for the lease as [Keeper.Acquire] does, and runs work under it as
// [Keeper.Hold] does.
func (k *Keeper) Do(ctx context.Context, req runstore.AcquireRequest, work Work) error {
	granted, err := k.Acquire(ctx, req)
	if err != nil {
		return err
	}
	return k.Hold(ctx, granted, work)
}

// Hold runs work under a lease that was granted already, renews the lease while
// the work runs, and releases it afterwards.
//
// The work's context ends when ctx ends or when the lease is lost, and at the
// latest when the trusted time is over: TTL less margin after the last
// successful request left, which is before the expiry on the store clock. When
// ctx ends the lease is kept until the work has returned, so that the work can
// finish what it must.
//
// The release has a context of its own, bounded by Options.ReleaseTimeout, and
// carries the writes of [Held.ReleaseWith]. A work that panics is released
// without them, and the panic goes on. So is one that lost its lease by expiry,
// as the lease may still stand and others would wait for it; a lease that the
// store has refused is not released.
//
// The error is what work returned if the lease was held to the end, joined with
// a [ReleaseError] if the release failed. If the lease was lost it is a
// [LostError], joined with what work returned unless that only passes on the
// end of its context; this is so even if work returned nil. Whether a heartbeat,
// a write of the work or the release was the first to be refused makes no
// difference.
//
// If ctx has ended already work is not run, and the error is the cause; if the
// lease was not trusted any more and could not be renewed work is not run, and
// the error is a LostError.
func (k *Keeper) Hold(ctx context.Context, granted Granted, work Work) error {
	h := k.held(granted)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), h.release(ctx, runstore.Writes{}))
	}
	if err := h.begin(ctx); err != nil {
		return err
	}
	ctx, h.cancel = context.WithCancelCause(ctx)
	go h.keep(context.WithoutCancel(ctx))

	// The work runs on the caller's goroutine. So its panic needs no recovery and
	// keeps its stack: the lease is released on the way.
	returned := false
	defer func() {
		if !returned {
			h.withdraw()
			_ = h.end(ctx, nil) // the panic is the news
		}
	}()
	err := work(ctx, h)
	returned = true
	return h.end(ctx, err)
}
