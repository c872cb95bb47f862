package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// TryAcquire sends one request for the lease. Leave the request's TTL zero: the keeper's applies.
// An empty grant id is filled in. If the caller chose the id and an earlier copy of the request was
// granted, Sent is zero in the result.
//
// Errors: those of runstore.RunStore.AcquireLease, and runstore.ErrInvalid if the request carries a
// TTL other than the keeper's. After runstore.ErrUnknownOutcome the lease may have been granted;
// [Keeper.Acquire] resolves that case, TryAcquire does not.
func (k *Keeper) TryAcquire(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	chosen := req.Grant != ""
	req, err := k.prepare(req)
	if err != nil {
		return Granted{}, err
	}
	granted, err := k.acquireOnce(ctx, req)
	if chosen && granted.replayed {
		granted.Sent = time.Time{}
	}
	return granted, err
}

// Acquire blocks until the lease is granted, ctx ends, or the store refuses for a reason other than
// another holder.
//
// While the lease is held, Acquire asks again as soon as the store announces its release
// (runstore.RunNotifier). Announcements may be lost, and an expiry causes none, so Acquire also
// polls: with exponential backoff and jitter, between Options.MinBackoff and MaxBackoff. If the
// store reports that the lease expires sooner, Acquire asks right after the expiry, with a jitter
// of up to half of MinBackoff.
//
// A request whose outcome is unknown is repeated with the same grant id, unless it has writes and the store no
// longer remembers it (runstore.ErrForgotten): then the lease may be held until it expires. Trust in the lease then
// counts from the first of these requests, since any of them may be the one that was applied. If the
// caller chose the id, an earlier process may have sent the first one, so Sent is zero in the result. If a
// repeat, which the store may have sent, finds that the lease was granted and has been lost since, Acquire
// continues under a fresh grant id, unless the caller chose the id or the request preempts, or carries
// writes or a fence. In those cases the error matches runstore.ErrFenced, or [ErrLost] where the store reports
// that the writes were applied with the grant.
//
// The error matches the store's last answer (runstore.ErrLeaseHeld names the holder) and, if ctx
// has ended, its cause. It matches runstore.ErrUnknownOutcome too if an earlier request has an unknown
// outcome, also where the last answer is a refusal: the lease may have been granted, with the request's
// writes, or may be when a late copy of the request arrives, and then expires unused.
func (k *Keeper) Acquire(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	chosen := req.Grant != ""
	renamable := !chosen && req.Preempt == "" && req.Writes.IsZero() && runstore.GuardsOf(req.Guards...).Fence.IsZero()
	req, err := k.prepare(req)
	if err != nil {
		return Granted{}, err
	}
	var ambiguousSince time.Time // when the first request of unknown outcome was sent
	hints := &hints{keeper: k, run: req.Run, on: runstore.OnRelease}
	defer hints.end()
	var outage Outage
	look := k.newLookout()
	for backoff := k.opts.MinBackoff; ; backoff = min(2*backoff, k.opts.MaxBackoff) {
		granted, err := look.acquire(ctx, req)
		outage.Observe(k, granted.Sent, err)
		if err == nil {
			switch {
			case chosen && granted.replayed: // an earlier process may have sent the first copy
				granted.Sent = time.Time{}
			case !ambiguousSince.IsZero():
				granted.Sent = ambiguousSince
			}
			return granted, nil
		}
		if ambiguousSince.IsZero() && runstore.OutcomeOf(err) == runstore.Unknown {
			ambiguousSince = granted.Sent
		}
		answer := err
		if !ambiguousSince.IsZero() {
			answer = unresolved("acquire lease", req.Run, err)
		}
		wait := pace.Jitter(backoff)
		var held *runstore.LeaseHeldError
		switch {
		case errors.As(err, &held):
			hints.begin(ctx)
			wait = min(wait, held.Remaining+rand.N(k.opts.MinBackoff/2+1))
		case renamable && (errors.Is(err, runstore.ErrFenced) || errors.Is(err, ErrLost)):
			// An earlier copy of the request was granted, and the grant has ended. Even the first answer
			// may say so, because a store may repeat a request whose reply it has lost.
			req.Grant, ambiguousSince = runstore.NewGrantID(), time.Time{}
		case !transient(err) || !req.Writes.IsZero() && errors.Is(err, runstore.ErrForgotten): // the store could apply the writes again
			return Granted{}, answer
		}
		if ctx.Err() != nil || !hints.pause(ctx, wait) || !k.awaitGrace(ctx, &outage, req) {
			return Granted{}, fmt.Errorf("%w while waiting for a lease; last answer: %w", context.Cause(ctx), answer)
		}
	}
}

// prepare fills in the request's TTL and grant id, and rejects a TTL other than the keeper's.
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

// acquireOnce sends one request, bounded by Options.RequestTimeout. Sent is set in the result even
// with an error.
func (k *Keeper) acquireOnce(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	ctx, cancel := context.WithTimeout(ctx, k.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	granted, err := k.store.AcquireLease(ctx, req)
	if err == nil && granted.Ended {
		return Granted{Sent: sent}, fmt.Errorf("%w: the lease was granted with the request's writes under token %v, and has ended", ErrLost, granted.Token)
	}
	return Granted{Lease: granted.Lease, Sent: sent, replayed: granted.Committed.Replayed}, err
}
