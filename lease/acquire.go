package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// TryAcquire asks for a lease once. The request's TTL is the keeper's: leave it
// zero. An empty grant id is filled in.
//
// Errors: those of runstore.RunStore.AcquireLease; runstore.ErrInvalid for
// another TTL. After runstore.ErrUnknownOutcome the lease may be granted:
// [Keeper.Acquire] would have found out.
func (k *Keeper) TryAcquire(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	req, err := k.prepare(req)
	if err != nil {
		return Granted{}, err
	}
	return k.ask(ctx, req)
}

// Acquire waits until the lease is granted, ctx ends or the store refuses for
// another reason than that somebody else holds it.
//
// A contender that finds the lease held asks again as soon as the store hints at its release
// (runstore.RunNotifier). Hints may be lost, and expiry gives none, so it also asks after a pause between Options.MinBackoff and MaxBackoff, growing
// exponentially, with jitter. One that is told that the lease expires sooner
// comes back right after that, jittered over half of MinBackoff. A request
// whose outcome is unknown is repeated with the same grant id; the trust in the
// lease then counts from the first of them, whichever was applied. If the repeat
// finds that the lease was granted and has been lost since, Acquire goes on under a
// fresh grant id, unless the caller chose the id or the request carries writes. Then the
// error matches runstore.ErrFenced, or [ErrLost] where the store knows that the writes
// were applied with the grant.
//
// The error matches the store's last answer (runstore.ErrLeaseHeld tells who
// holds the lease) and, if ctx has ended, its cause. When the outcome of a
// request was unknown to the end, the lease may be granted and expires unused.
func (k *Keeper) Acquire(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	renamable := req.Grant == "" && req.Writes.IsZero()
	req, err := k.prepare(req)
	if err != nil {
		return Granted{}, err
	}
	var doubtful time.Time // when the first request left that may yet be applied
	hints := &hints{keeper: k, run: req.Run}
	defer hints.end()
	for backoff := k.opts.MinBackoff; ; backoff = min(2*backoff, k.opts.MaxBackoff) {
		granted, err := k.ask(ctx, req)
		if err == nil {
			if !doubtful.IsZero() {
				granted.Sent = doubtful
			}
			return granted, nil
		}
		if errors.Is(err, ErrLost) {
			return Granted{}, err
		}
		if doubtful.IsZero() && runstore.OutcomeOf(err) == runstore.Unknown {
			doubtful = granted.Sent
		}
		wait := jitter(backoff)
		var held *runstore.LeaseHeldError
		switch {
		case errors.As(err, &held):
			if hints.begin(ctx) {
				continue // it may have been released before
			}
			wait = min(wait, held.Remaining+rand.N(k.opts.MinBackoff/2+1))
		case renamable && !doubtful.IsZero() && errors.Is(err, runstore.ErrFenced):
			req.Grant, doubtful = runstore.NewGrantID(), time.Time{}
		case !transient(err):
			return Granted{}, err
		}
		if ctx.Err() != nil || !hints.pause(ctx, wait) {
			return Granted{}, fmt.Errorf("%w while waiting for a lease; last answer: %w", context.Cause(ctx), err)
		}
	}
}

func (k *Keeper) prepare(req runstore.AcquireRequest) (runstore.AcquireRequest, error) {
	if req.TTL != 0 && req.TTL != k.opts.TTL {
		return req, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "ttl",
			Problem: fmt.Sprintf("%v is not the keeper's, %v; leave it zero", req.TTL, k.opts.TTL),
		}
	}
	req.TTL = k.opts.TTL
	if req.Grant == "" {
		req.Grant = runstore.NewGrantID()
	}
	return req, nil
}

// ask sends one request. The result's Sent is set in any case.
func (k *Keeper) ask(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	ctx, cancel := context.WithTimeout(ctx, k.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	granted, err := k.store.AcquireLease(ctx, req)
	if err == nil && granted.Ended {
		return Granted{Sent: sent}, fmt.Errorf("%w: the lease was granted with the request's writes under token %v, and has ended", ErrLost, granted.Token)
	}
	return Granted{Lease: granted.Lease, Sent: sent}, err
}
