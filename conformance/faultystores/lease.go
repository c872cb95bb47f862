package faultystores

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// leaseStores grant leases and tokens wrongly.
func leaseStores() []faultyStore {
	return []faultyStore{
		{"live-lease-taken-over", "AcquireLease grants a live lease of another holder.",
			"I1/live-lease-is-not-taken-over", liveTaken},
		{"owner-as-authority", "A process with the holder's owner name gets the holder's live lease.",
			"I1/owner-name-is-no-authority-over-a-live-lease", ownerAuthority},
		{"renewal-not-stored", "RenewLease returns a later expiry but does not store it, so contenders see the old one.",
			"I1/renewed-lease-is-not-taken-at-its-old-expiry", renewalNotStored},
		{"expiry-gone-with-the-holder", "A run whose lease is free does not show the expiry of its last grant.",
			"I1/run-shows-its-holder", expiryGone},
		{"token-reset-on-release", "Releasing deletes the row that holds the token, and the next one is 1 again.",
			"I2/token-grows-by-one-per-grant", tokenResets},
		{"token-kept-by-a-takeover", "A takeover keeps the token of the former holder.",
			"I2/token-grows-by-one-per-grant", tokenKept},
		{"token-reused-after-purge", "A purge forgets the run's token, and the next run of that id begins at 1.",
			"I2/token-survives-purge-and-re-creation", tokenAfterPurge},
		{"token-burnt-by-a-refusal", "Each refused attempt costs a number, as a database sequence does.",
			"I2/refused-attempts-burn-no-token", tokenBurnt},
		{"late-copy-takes-the-lease", "A late copy of a request takes the lease again for a holder that has left.",
			"I2/late-copy-of-an-acquire-takes-no-lease", lateCopy},
		{"grant-id-ignored", "A repeated request contends with its own first copy.",
			"I2/repeated-acquire-finds-its-own-grant", grantIgnored},
		{"release-applied-twice", "A repeated release writes its events again.",
			"I2/repeated-release-writes-nothing-twice", releaseTwice},
		{"rollback-unnoticed", "A token that the store never granted is reported as fenced, as if it were old.",
			"I2/token-beyond-the-known-means-store-behind", rollbackUnnoticed},
		{"epoch-fences-nobody", "Fences of the former epoch stay valid until the next grant.",
			"I2/epoch-ends-every-grant-before-it", epochFencesNobody},
		{"renewal-shortens", "A renewal for a shorter time than is left cuts the lease.",
			"I3/renewal-never-shortens-a-lease", renewalShortens},
		{"guards-of-acquire-ignored", "AcquireLease ignores its guards.",
			"I3/guards-of-an-acquire-hold-or-nothing-happens", acquireUnguarded},
		{"preempt-unseen", "The run does not show the preempted holder and the reason.",
			"I3/preempt-tells-who-was-preempted-and-why", preemptUnseen},
		{"callers-clock", "Expiry is judged by the clock of the process that requests the lease.",
			"I7/wrong-clock-steals-no-live-lease", callersClock},
		{"holders-clock", "The holder's expiry is computed from its own clock.",
			"I7/wrong-clock-loses-no-lease-of-its-own", holdersClock},
		{"takeover-by-the-callers-clock", "An expired lease is refused while it is live on the clock of the requesting process.",
			"I7/wrong-clock-takes-over-what-has-expired", takeoverByCaller},
	}
}

func expiryGone(s *store) {
	s.get = func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error) {
		run, err := h.Handle.GetRun(ctx, id)
		if run.Holder == (runstore.Holder{}) {
			run.ExpiresAt = time.Time{}
		}
		return run, err
	}
}

func preempted(req runstore.AcquireRequest) runstore.AcquireRequest {
	req.Preempt = "the broken store does not know better"
	return req
}

func liveTaken(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if errors.Is(err, runstore.ErrLeaseHeld) {
			return ownAcquire(ctx, h, preempted(req))
		}
		return lease, err
	}
}

func ownerAuthority(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if now := s.current(req.Run); errors.Is(err, runstore.ErrLeaseHeld) && now.Owner == req.Owner {
			return runstore.Granted{Lease: now}, nil
		}
		return lease, err
	}
}

func renewalNotStored(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		ttl := req.TTL
		req.TTL = runstore.MinTTL
		lease, err := h.Handle.RenewLease(ctx, req)
		now, clockErr := h.Now(ctx)
		if err == nil && clockErr == nil {
			lease.TTL, lease.ExpiresAt = ttl, now.Add(ttl)
		}
		return lease, err
	}
}

// relabel makes a store with other tokens than the reference store: label returns the token of a
// new grant. A fence that a caller presents is translated back by its grant id.
func relabel(s *store, label func(lease runstore.Lease) runstore.Token) {
	var mu sync.Mutex
	real := map[runstore.GrantID]runstore.Fence{}
	back := func(f runstore.Fence) runstore.Fence {
		mu.Lock()
		defer mu.Unlock()
		if known, ok := real[f.Grant()]; ok {
			return known
		}
		return f
	}
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if err == nil {
			mu.Lock()
			real[lease.Grant] = lease.Fence()
			mu.Unlock()
			lease.Token = label(lease.Lease)
		}
		return lease, err
	}
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		req.Fence = back(req.Fence)
		return h.Handle.RenewLease(ctx, req)
	}
	release := s.release
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		req.Fence = back(req.Fence)
		if release != nil {
			return release(ctx, h, req)
		}
		return h.Handle.ReleaseLease(ctx, req)
	}
	commit := s.commit
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if f := b.Guards().Fence; !f.IsZero() {
			b = refenced(b, back(f))
		}
		if commit != nil {
			return commit(ctx, h, b)
		}
		return h.Handle.Commit(ctx, b)
	}
}

func tokenResets(s *store) {
	var mu sync.Mutex
	base := map[runstore.RunID]runstore.Token{}
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		done, err := h.Handle.ReleaseLease(ctx, req)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			base[req.Fence.Run()] = req.Fence.Token()
		}
		return done, err
	}
	relabel(s, func(l runstore.Lease) runstore.Token {
		mu.Lock()
		defer mu.Unlock()
		return l.Token - base[l.Run]
	})
}

func tokenKept(s *store) {
	relabel(s, func(runstore.Lease) runstore.Token { return 1 })
}

func tokenAfterPurge(s *store) {
	var mu sync.Mutex
	base := map[runstore.RunID]runstore.Token{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && b.Purge {
			mu.Lock()
			defer mu.Unlock()
			base[b.Run()] = s.current(b.Run()).Token
		}
		return done, err
	}
	relabel(s, func(l runstore.Lease) runstore.Token {
		mu.Lock()
		defer mu.Unlock()
		return l.Token - base[l.Run]
	})
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		created, err := h.Handle.CreateRun(ctx, spec)
		mu.Lock()
		defer mu.Unlock()
		created.Run.Token -= base[spec.ID]
		return created, err
	}
}

func tokenBurnt(s *store) {
	var mu sync.Mutex
	burnt := map[runstore.RunID]runstore.Token{}
	relabel(s, func(l runstore.Lease) runstore.Token {
		mu.Lock()
		defer mu.Unlock()
		return l.Token + burnt[l.Run]
	})
	acquire := s.acquire
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := acquire(ctx, h, req)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			burnt[req.Run]++
		}
		return lease, err
	}
}

func lateCopy(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if errors.Is(err, runstore.ErrFenced) {
			req.Grant = runstore.NewGrantID()
			return ownAcquire(ctx, h, req)
		}
		return lease, err
	}
}

func grantIgnored(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		if req.Grant == s.current(req.Run).Grant {
			req.Grant = runstore.NewGrantID()
		}
		return ownAcquire(ctx, h, req)
	}
}

func releaseTwice(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		done, err := h.Handle.ReleaseLease(ctx, req)
		if err == nil && done.Replayed {
			b := runstore.NewBatch(req.Fence.Run(), runstore.Unguarded("blind repeat"))
			b.Writes = req.Writes
			return h.Handle.Commit(ctx, b)
		}
		return done, err
	}
}

func rollbackUnnoticed(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if errors.Is(err, runstore.ErrStoreBehind) {
			err = &runstore.OpError{Op: "commit", Run: b.Run(),
				Err: &runstore.FencedError{Presented: b.Guards().Fence.Token(), Current: s.current(b.Run()).Token}}
		}
		return done, err
	}
}

func epochFencesNobody(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if f := b.Guards().Fence; !f.IsZero() && f == s.current(b.Run()).Fence() {
			if run, err := h.Handle.GetRun(ctx, b.Run()); err == nil && run.Holder.Token == 0 {
				b = refenced(b, runstore.Fence{})
			}
		}
		return h.Handle.Commit(ctx, b)
	}
}

func renewalShortens(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		lease, err := h.Handle.RenewLease(ctx, req)
		now, clockErr := h.Now(ctx)
		if err == nil && clockErr == nil {
			lease.ExpiresAt = now.Add(req.TTL)
		}
		return lease, err
	}
}

func acquireUnguarded(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		req.Guards = nil
		return ownAcquire(ctx, h, req)
	}
}

func preemptUnseen(s *store) {
	s.get = func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error) {
		run, err := h.Handle.GetRun(ctx, id)
		run.Holder.Preempted = runstore.Preempted{}
		return run, err
	}
}

func callersClock(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		run, err := h.Handle.GetRun(ctx, req.Run)
		now, clockErr := h.clock(ctx)
		if err == nil && clockErr == nil && !run.Live(now) {
			req = preempted(req)
		}
		return ownAcquire(ctx, h, req)
	}
}

func holdersClock(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if now, clockErr := h.clock(ctx); err == nil && clockErr == nil {
			lease.ExpiresAt = now.Add(req.TTL)
		}
		return lease, err
	}
}

func takeoverByCaller(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		run, err := h.Handle.GetRun(ctx, req.Run)
		now, clockErr := h.clock(ctx)
		if err == nil && clockErr == nil && run.Live(now) {
			return runstore.Granted{}, &runstore.LeaseHeldError{Holder: run.Holder, Remaining: run.ExpiresAt.Sub(now)}
		}
		return ownAcquire(ctx, h, req)
	}
}
