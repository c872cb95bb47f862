package faultystores

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// tokenStores judge a token guard, or a holder's consent to a handoff, wrongly.
func tokenStores() []faultyStore {
	return []faultyStore{
		{"token-guard-ignored", "A batch is applied whatever token it is guarded by.",
			"I3/a-token-guard-holds-at-the-last-token-only", tokenGuardIgnored},
		{"token-guard-judged-before-the-step", "The token guard of an acquire is compared with a head that was read before the atomic step.",
			"I1/of-several-preempts-at-one-token-one-is-granted", tokenGuardBefore},
		{"token-guard-of-the-live-grant-only", "A token guard holds for a lease that is held, and for no token that has ended.",
			"I3/a-token-guard-holds-at-the-last-token-only", tokenGuardLive},
		{"token-guard-unheard-of", "A token that the store never granted is a conflict, as if it were old.",
			"I2/a-token-guard-beyond-the-known-means-store-behind", tokenGuardUnknown},
		{"token-guard-ignored-by-a-release", "A batch that releases ends any grant, whatever token it is guarded by.",
			"I3/a-revocation-at-a-token-ends-no-later-grant", tokenGuardRelease},
		{"handoff-by-any-former-holder", "Any former fence of the run is taken for the holder's consent.",
			"I3/a-former-holder-hands-nothing-off", handoffByZombie},
		{"handoff-through-a-gap", "A handoff releases the lease first, and then acquires it.",
			"I3/a-holder-hands-its-lease-off-without-a-gap", handoffWithGap},
		{"handoff-of-a-strict-lease-that-is-over", "A handoff ignores the expiry of a strict lease.",
			"I3/a-strict-lease-is-not-handed-off-after-its-expiry", handoffLate},
		{"guards-of-release-ignored", "ReleaseLease ignores its guards.",
			"I3/guards-of-a-release-hold-or-nothing-happens", releaseUnguarded},
		{"scan-ignores-its-lower-bound", "A scan begins at the first entry of the index.",
			"I9/a-scan-begins-at-its-lower-bound", scanFromStart},
		{"scan-rounds-its-lower-bound-down", "A scan begins at the microsecond before its lower bound.",
			"I9/a-scan-begins-at-its-lower-bound", scanFromRounded},
		{"runs-scanned-from-behind-the-bound", "A scan of runs leaves out the runs at its lower bound.",
			"I9/runs-are-scanned-from-a-lower-bound", runsFromBehind},
		{"heads-left-out", "Entries of records never carry their run.",
			"I9/an-entry-carries-its-run-on-request", headsLeftOut},
		{"heads-without-summary", "The run that an entry of a record carries has no summary.",
			"I9/an-entry-carries-its-run-on-request", headsBare},
	}
}

// withoutToken returns guards without the token guard.
func withoutToken(guards []runstore.Guard) []runstore.Guard {
	var rest []runstore.Guard
	for _, guard := range guards {
		if runstore.GuardsOf(guard).Token == nil {
			rest = append(rest, guard)
		}
	}
	return rest
}

func batchWithoutToken(b runstore.Batch) runstore.Batch {
	g := b.Guards()
	g.Token = nil
	return reguarded(b, g)
}

func tokenGuardIgnored(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		return h.Handle.Commit(ctx, batchWithoutToken(b))
	}
}

func tokenGuardBefore(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		if want := runstore.GuardsOf(req.Guards...).Token; want != nil {
			run, err := h.Handle.GetRun(ctx, req.Run)
			if err == nil && run.Token == *want {
				s.pauseBetweenSteps()
				req.Guards = withoutToken(req.Guards)
			}
		}
		return ownAcquire(ctx, h, req)
	}
}

func tokenGuardLive(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if want := b.Guards().Token; want != nil && *want != 0 {
			run, err := h.Handle.GetRun(ctx, b.Run())
			if err == nil && run.Holder.Token == 0 {
				return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(),
					Err: &runstore.ConflictError{Guard: "token", Token: run.Token, NextSeq: run.LastSeq + 1, Status: run.Status}}
			}
		}
		return h.Handle.Commit(ctx, b)
	}
}

func tokenGuardUnknown(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if errors.Is(err, runstore.ErrStoreBehind) && b.Guards().Token != nil {
			err = &runstore.OpError{Op: "commit", Run: b.Run(), Err: &runstore.ConflictError{Guard: "token"}}
		}
		return done, err
	}
}

func tokenGuardRelease(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if b.Release {
			b = batchWithoutToken(b)
		}
		return h.Handle.Commit(ctx, b)
	}
}

// withoutHolderFence returns a request without its holder's fence, and that fence.
func withoutHolderFence(req runstore.AcquireRequest) (runstore.AcquireRequest, runstore.Fence) {
	fence := runstore.GuardsOf(req.Guards...).Fence
	req.Guards = slices.DeleteFunc(slices.Clone(req.Guards), func(g runstore.Guard) bool { return g == runstore.Guard(fence) })
	return req, fence
}

func handoffByZombie(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if without, fence := withoutHolderFence(req); !fence.IsZero() && errors.Is(err, runstore.ErrFenced) {
			return ownAcquire(ctx, h, preempted(without))
		}
		return lease, err
	}
}

func handoffWithGap(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		without, fence := withoutHolderFence(req)
		if fence.IsZero() {
			return ownAcquire(ctx, h, req)
		}
		if _, err := h.Handle.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: fence}); err != nil {
			return runstore.Granted{}, err
		}
		return ownAcquire(ctx, h, without)
	}
}

func handoffLate(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		lease, err := ownAcquire(ctx, h, req)
		if without, fence := withoutHolderFence(req); !fence.IsZero() && errors.Is(err, runstore.ErrLeaseExpired) {
			return ownAcquire(ctx, h, without)
		}
		return lease, err
	}
}

func releaseUnguarded(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		req.Guards = nil
		return h.Handle.ReleaseLease(ctx, req)
	}
}

func scanFromStart(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		if q.Index != runstore.IndexRuns && q.Index != runstore.IndexRunnable {
			q.From = time.Time{}
		}
		return h.Handle.ScanIndex(ctx, q)
	}
}

func scanFromRounded(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		q.From = q.From.Truncate(runstore.TimePrecision)
		return h.Handle.ScanIndex(ctx, q)
	}
}

func runsFromBehind(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		if q.Index == runstore.IndexRuns && !q.From.IsZero() {
			q.From = q.From.Add(runstore.TimePrecision)
		}
		return h.Handle.ScanIndex(ctx, q)
	}
}

func headsLeftOut(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		q.Heads = false
		return h.Handle.ScanIndex(ctx, q)
	}
}

func headsBare(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		entries, err := h.Handle.ScanIndex(ctx, q)
		for i := range entries {
			if q.Heads {
				entries[i].Head.Summary = runstore.Record{}
			}
		}
		return entries, err
	}
}
