package faultystores

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/internal/gate"
	"github.com/tapestore/tapestore/runstore"
)

// fenceStores check the fence wrongly.
func fenceStores() []faultyStore {
	return []faultyStore{
		{"no-token-check", "Commit ignores the fence and uses the current grant's in its place.",
			"I3/zombie-append-is-refused", noTokenCheck},
		{"owner-only-check", "A fence counts if it names the current owner, whatever its token.",
			"I3/old-fence-of-the-same-owner-is-refused", ownerOnly},
		{"token-only-check", "A fence counts if its token is current, whatever its owner and grant id.",
			"I3/token-alone-is-no-fence", tokenOnly},
		{"check-then-write", "Commit reads the current grant, and writes in a second step.",
			"I3/write-in-flight-at-a-preempt-loses-or-comes-first", checkThenWrite},
		{"owner-only-among-many", "Commits that come while others are under way are checked by the owner's name only.",
			"I3/appends-to-many-runs-at-once-are-fenced-one-by-one", amongMany(ownerOnly)},
		{"check-then-lock-among-many", "Commits that come while others are under way read the current grant before they wait for the run's lock.",
			"I3/appends-to-many-runs-at-once-lose-to-a-preempt-held-open", amongMany(checkThenLock)},
		{"fence-on-the-journal-only", "Commit checks the fence for batches with events, and not for records alone.",
			"I3/zombie-record-put-is-refused", journalOnly},
		{"status-unfenced", "Status and runnable time are written without a look at the fence.",
			"I3/zombie-status-is-refused", statusUnfenced},
		{"renewal-by-any-grant", "RenewLease extends the lease under any fence.",
			"I3/zombie-renewal-is-refused", renewAny},
		{"renewal-with-a-status-by-any-grant", "RenewLease checks the fence, and not if it carries a status: the row of the status is updated by the run alone.",
			"I3/every-mutation-target-refuses-a-stale-token", renewStatusUnfenced},
		{"release-by-name", "ReleaseLease looks at the run and not at the grant, and frees another holder's lease.",
			"I3/zombie-release-is-refused", releaseAny},
		{"expiry-ends-a-grant", "A late holder is refused although no other handle has taken over.",
			"I3/expired-holder-goes-on-while-nobody-took-over", expiryEnds},
		{"strict-ignored", "A strict lease goes on after its expiry.",
			"I3/strict-lease-is-over-at-its-expiry", strictIgnored},
		{"strict-judged-before-the-lock", "The expiry of a strict lease is judged before the write waits for a lock, and not after it.",
			"I3/strict-write-behind-a-lock-at-its-expiry-ends-as-declared", checkThenWrite},
		{"conflict-before-fenced", "A zombie whose versions are stale too gets ErrConflict, so it reads again instead of stopping.",
			"I3/fenced-comes-before-conflict", conflictFirst},
		{"fence-instead-of-guards", "If a batch has a fence, its other guards are ignored.",
			"I3/fence-does-not-replace-other-guards", fenceInstead},
		{"refused-batch-remembered", "The id of a zombie's refused batch is remembered, and the current holder's batch of that id is taken for its repeat.",
			"I3/refused-batch-is-not-remembered", refusedRemembered},
	}
}

func noTokenCheck(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if !b.Guards().Fence.IsZero() && b.Guards().Fence.Run() == b.Run() {
			b = refenced(b, s.current(b.Run()).Fence())
		}
		return h.Handle.Commit(ctx, b)
	}
}

func ownerOnly(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		if err == nil && run.Holder.Owner == b.Guards().Fence.Owner() {
			b = refenced(b, s.current(b.Run()).Fence())
		}
		return h.Handle.Commit(ctx, b)
	}
}

func tokenOnly(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if now := s.current(b.Run()); now.Token == b.Guards().Fence.Token() {
			b = refenced(b, now.Fence())
		}
		return h.Handle.Commit(ctx, b)
	}
}

// prolong waits, between a check and its write, while a case keeps the window closed. It reports
// whether it had to.
func prolong(ctx context.Context, window *gate.Gate) bool {
	blocked, _ := window.Pass(context.WithoutCancel(ctx)) // which never ends
	return blocked
}

// checkThenWrite waits between its check and its write, as an adapter's second statement may wait
// for a connection pool or a slow network.
func checkThenWrite(s *store) {
	window := &gate.Gate{}
	s.stall = window.Close
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		f := b.Guards().Fence
		if err != nil || f.IsZero() || run.Holder.Token != f.Token() || run.Holder.Owner != f.Owner() {
			return h.Handle.Commit(ctx, b)
		}
		prolong(ctx, window)
		return h.Handle.Commit(ctx, refenced(b, runstore.Fence{}))
	}
}

// checkThenLock checks a fence, then waits for the run's lock, and writes without a second check of
// the state that the lock's last holder left. The stall blocks grants too, as if they held the
// locks of their runs.
func checkThenLock(s *store) {
	window := &gate.Gate{}
	s.stall = window.Close
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		prolong(ctx, window)
		return ownAcquire(ctx, h, req)
	}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		if f := b.Guards().Fence; err != nil || f.IsZero() || s.current(b.Run()).Fence() != f || run.Holder.Token != f.Token() {
			return h.Handle.Commit(ctx, b)
		}
		if !prolong(ctx, window) {
			return h.Handle.Commit(ctx, b)
		}
		s.pauseBetweenSteps() // let the grants go first
		return h.Handle.Commit(ctx, refenced(b, runstore.Fence{}))
	}
}

// amongMany breaks only the commits that arrive while two others are in progress, as a faulty group
// commit would.
func amongMany(broken func(s *store)) func(s *store) {
	return func(s *store) {
		broken(s)
		shared := s.commit
		var underWay atomic.Int64
		s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
			defer underWay.Add(-1)
			if underWay.Add(1) > 2 {
				return shared(ctx, h, b)
			}
			s.pauseBetweenSteps()
			return h.Handle.Commit(ctx, b)
		}
	}
}

func journalOnly(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if len(b.Events) == 0 && len(b.Records) > 0 && b.Guards().Fence.Run() == b.Run() {
			b = refenced(b, s.current(b.Run()).Fence())
		}
		return h.Handle.Commit(ctx, b)
	}
}

func statusUnfenced(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if len(b.Events) == 0 && len(b.Records) == 0 && (b.Status != nil || !b.Runnable.IsZero()) {
			b = refenced(b, runstore.Fence{})
		}
		return h.Handle.Commit(ctx, b)
	}
}

func renewAny(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		if now := s.current(req.Fence.Run()); now.Token > req.Fence.Token() {
			req.Fence = now.Fence()
		}
		return h.Handle.RenewLease(ctx, req)
	}
}

func renewStatusUnfenced(s *store) {
	renewAny(s)
	unfenced := s.renew
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		if req.Writes.Status != nil {
			return unfenced(ctx, h, req)
		}
		return h.Handle.RenewLease(ctx, req)
	}
}

func releaseAny(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		if now := s.current(req.Fence.Run()); now.Token > req.Fence.Token() {
			req.Fence = now.Fence()
		}
		return h.Handle.ReleaseLease(ctx, req)
	}
}

func expiryEnds(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		now, clockErr := h.Now(ctx)
		if err == nil && clockErr == nil && !b.Guards().Fence.IsZero() && run.Holder.Token != 0 && !run.Live(now) {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrLeaseExpired}
		}
		return h.Handle.Commit(ctx, b)
	}
}

func strictIgnored(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		strict := req.Strict
		req.Strict = false
		lease, err := ownAcquire(ctx, h, req)
		lease.Strict = strict && err == nil
		return lease, err
	}
}

func conflictFirst(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if g := b.Guards(); errors.Is(err, runstore.ErrFenced) && (len(g.Versions) > 0 || g.NextSeq != 0 || len(g.Statuses) > 0) {
			probe := refenced(b, runstore.Fence{})
			probe.ID, probe.Writes = "", runstore.Writes{}
			if _, other := h.Handle.Commit(ctx, probe); errors.Is(other, runstore.ErrConflict) {
				return done, other
			}
		}
		return done, err
	}
}

func fenceInstead(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if f := b.Guards().Fence; !f.IsZero() {
			b = reguarded(b, runstore.Guards{Fence: f})
		}
		return h.Handle.Commit(ctx, b)
	}
}

func refusedRemembered(s *store) {
	var mu sync.Mutex
	refused := map[runstore.BatchID]bool{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		done, err := h.Handle.Commit(ctx, b)
		if b.ID != "" && errors.Is(err, runstore.ErrFenced) {
			refused[b.ID] = true
		} else if err == nil && refused[b.ID] {
			done.Replayed = true
		}
		return done, err
	}
}
