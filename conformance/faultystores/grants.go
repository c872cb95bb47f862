package faultystores

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
)

// grantStores make a second grant under a used grant id, or take one grant for another.
func grantStores() []faultyStore {
	return []faultyStore{
		{"last-grant-id-only", "Only the id of a run's last grant is remembered: after another grant a late copy takes the lease.",
			"I2/late-copy-of-an-acquire-is-refused-after-later-grants", lastGrantOnly},
		{"held-before-ended", "A request whose grant has ended gets ErrLeaseHeld, so its caller waits and retries.",
			"I2/late-copy-of-an-acquire-is-refused-after-later-grants", heldBeforeEnded},
		{"ten-grant-ids", "A run's last ten grants are remembered, which is fewer than the contract promises.",
			"I2/grant-id-is-remembered-over-many-grants", tenGrants},
		{"purge-forgets-grant-ids", "A purge removes the ids of the run's grants with everything else.",
			"I2/grant-id-outlives-purge-and-re-creation", purgeForgetsGrants},
		{"late-create-revives", "A late copy of the request that created a purged run creates it anew, with its lease.",
			"I2/grant-id-outlives-purge-and-re-creation", lateCreate},
		{"epoch-forgets-grant-ids", "Raising the epoch removes the ids of the grants that it ends.",
			"I2/grant-id-outlives-an-epoch", epochForgetsGrants},
		{"any-release-is-a-repeat", "While the lease is free, every release is taken for a repeat of the last one.",
			"I2/late-copy-of-a-release-is-refused-after-later-grants", anyReleaseRepeats},
		{"grant-id-is-the-fence", "A fence counts if owner and grant id are the current ones, whatever its token.",
			"I3/older-token-with-the-current-grant-id-is-refused", grantIsFence},
	}
}

// retryWithFreshGrant makes an acquire forget grant ids: a request that is refused because its
// grant has ended is repeated under a fresh id, if forgotten(request) is true.
func (s *store) retryWithFreshGrant(forgotten func(runstore.AcquireRequest) bool) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if errors.Is(err, runstore.ErrFenced) && forgotten(req) {
			req.Grant = runstore.NewGrantID()
			return ownAcquire(ctx, h, req)
		}
		return lease, err
	}
}

func lastGrantOnly(s *store) {
	s.retryWithFreshGrant(func(req runstore.AcquireRequest) bool { return s.current(req.Run).Grant != req.Grant })
}

func heldBeforeEnded(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		var fenced *runstore.FencedError
		if errors.As(err, &fenced) && fenced.Holder.Token != 0 && req.Preempt == "" {
			return lease, &runstore.OpError{Op: "acquire lease", Run: req.Run,
				Err: &runstore.LeaseHeldError{Holder: fenced.Holder, Remaining: 1}}
		}
		return lease, err
	}
}

func tenGrants(s *store) {
	var mu sync.Mutex
	last := map[runstore.RunID][]runstore.GrantID{}
	s.retryWithFreshGrant(func(req runstore.AcquireRequest) bool {
		mu.Lock()
		defer mu.Unlock()
		return !slices.Contains(last[req.Run], req.Grant)
	})
	acquire := s.acquire
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := acquire(ctx, h, req)
		mu.Lock()
		defer mu.Unlock()
		if grants := last[req.Run]; err == nil && !slices.Contains(grants, lease.Grant) {
			grants = append(grants, lease.Grant)
			last[req.Run] = grants[max(0, len(grants)-10):]
		}
		return lease, err
	}
}

func purgeForgetsGrants(s *store) {
	var mu sync.Mutex
	before := map[runstore.RunID]runstore.Token{} // by run: the last token at the purge
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && b.Purge {
			mu.Lock()
			defer mu.Unlock()
			before[b.Run()] = s.current(b.Run()).Token
		}
		return done, err
	}
	s.retryWithFreshGrant(func(req runstore.AcquireRequest) bool {
		mu.Lock()
		defer mu.Unlock()
		return before[req.Run] >= s.current(req.Run).Token // no grant since the purge
	})
}

func lateCreate(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		created, err := h.Handle.CreateRun(ctx, spec)
		if errors.Is(err, runstore.ErrFenced) {
			lease := *spec.Lease
			lease.Grant, spec.Lease = runstore.NewGrantID(), &lease
			return h.Handle.CreateRun(ctx, spec)
		}
		return created, err
	}
}

func epochForgetsGrants(s *store) {
	var raised atomic.Bool
	s.raise = func(ctx context.Context, h *handle, reason string) (runstore.Epoch, error) {
		raised.Store(true)
		return h.Handle.RaiseEpoch(ctx, reason)
	}
	s.retryWithFreshGrant(func(runstore.AcquireRequest) bool { return raised.Load() })
}

func anyReleaseRepeats(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		done, err := h.Handle.ReleaseLease(ctx, req)
		var fenced *runstore.FencedError
		if errors.As(err, &fenced) && fenced.Holder.Token == 0 {
			return runstore.Committed{Replayed: true}, nil
		}
		return done, err
	}
}

func grantIsFence(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		f, now := b.Guards().Fence, s.current(b.Run())
		if f.Owner() == now.Owner && f.Grant() == now.Grant {
			b = refenced(b, now.Fence())
		}
		return h.Handle.Commit(ctx, b)
	}
}
