package faultystores

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// progressStores judge progress wrongly, report grants wrongly, or answer repeats of grants,
// renewals and releases wrongly.
func progressStores() []faultyStore {
	return []faultyStore{
		{"stall-ignored", "RenewLease renews however long ago the last progress was.",
			"I13/a-holder-without-progress-is-refused", stallIgnored},
		{"stall-ends-the-grant", "A refused renewal ends the grant, and a late commit under it is fenced.",
			"I13/a-holder-without-progress-is-refused", stallEnds},
		{"stall-outlives-its-grant", "The bound of one grant stays in force for the next.",
			"I13/without-a-bound-a-holder-may-stall", stallOutlives},
		{"progress-by-heartbeat", "A renewal counts as progress.",
			"I13/heartbeats-refusals-and-others-writes-are-no-progress", progressByHeartbeat},
		{"progress-by-refused-batch", "A batch that is refused counts as progress.",
			"I13/heartbeats-refusals-and-others-writes-are-no-progress", progressByRefusal},
		{"progress-by-guards-only", "A batch that changes nothing counts as progress.",
			"I13/heartbeats-refusals-and-others-writes-are-no-progress", progressByGuards},
		{"progress-by-events-only", "A batch of records does not count as progress.",
			"I13/events-and-records-under-the-fence-are-progress", progressByEvents},
		{"progress-before-expiry-only", "A commit counts as progress only while the lease is live.",
			"I13/a-late-commit-is-progress", progressWhileLive},
		{"renewal-drops-its-writes", "RenewLease renews and leaves the writes out.",
			"I4/grants-renewals-and-releases-return-what-they-wrote", renewalDrops},
		{"renewal-applied-twice", "A repeated renewal makes its writes again.",
			"I8/a-repeated-renewal-with-writes-gets-the-first-result", renewalTwice},
		{"repeated-acquire-is-fenced", "The repeat of an acquire whose writes were applied is refused once the grant has ended.",
			"I8/a-repeated-acquire-with-writes-gets-the-first-result", acquireFenced},
		{"ended-grant-unsaid", "The repeat of an acquire does not say that the grant has ended.",
			"I8/a-repeated-acquire-with-writes-gets-the-first-result", endUnsaid},
		{"repeated-release-without-result", "The repeat of a release with writes returns the run's last seq alone.",
			"I8/a-repeated-release-with-writes-gets-the-first-result", releaseBare},
		{"one-namespace-for-all-ids", "A release is taken for the repeat of a batch of that id.",
			"I8/ids-of-batches-grants-and-releases-do-not-collide", oneNamespace},
		{"expired-reported-as-released", "A successor cannot see that the former lease expired without a release.",
			"I2/a-successor-learns-how-the-former-grant-ended", expiredAsReleased},
		{"token-left-out-of-records", "Records do not name the token of their last change.",
			"I3/records-carry-the-token-of-their-changes", tokenLeftOut},
		{"last-token-for-all-records", "Every record names the run's last token.",
			"I3/records-carry-the-token-of-their-changes", lastToken},
		{"unlisted-runs-listed", "Every run is listed.",
			"I9/unlisted-runs-are-in-no-list-of-runs", unlistedListed},
		{"unlisted-runs-never-runnable", "An unlisted run is in no index, and nothing drives it.",
			"I9/unlisted-runs-are-in-no-list-of-runs", unlistedNeverRunnable},
	}
}

func stallIgnored(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		renewed, err := h.Handle.RenewLease(ctx, req)
		if errors.Is(err, runstore.ErrNoProgress) {
			return runstore.Renewed{Lease: s.current(req.Fence.Run())}, nil
		}
		return renewed, err
	}
}

func stallEnds(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		renewed, err := h.Handle.RenewLease(ctx, req)
		if errors.Is(err, runstore.ErrNoProgress) {
			_, _ = h.Handle.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: req.Fence}) // the store is faulty whether or not this succeeds
		}
		return renewed, err
	}
}

func stallOutlives(s *store) {
	var mu sync.Mutex
	bounds := map[runstore.RunID]time.Duration{}
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		mu.Lock()
		if req.MaxStall == 0 {
			req.MaxStall = bounds[req.Run]
		}
		bounds[req.Run] = req.MaxStall
		mu.Unlock()
		return ownAcquire(ctx, h, req)
	}
}

// recordProgress makes GetRun show progress at the last time that note was called for the run.
func recordProgress(s *store) (note func(h *handle, id runstore.RunID)) {
	var mu sync.Mutex
	times := map[runstore.RunID]time.Time{}
	s.get = func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error) {
		run, err := h.Handle.GetRun(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		if at := times[id]; err == nil && at.After(run.Holder.ProgressedAt) {
			run.Holder.ProgressedAt = at
		}
		return run, err
	}
	return func(h *handle, id runstore.RunID) {
		now, err := h.Now(context.Background())
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			times[id] = now.Add(time.Microsecond) // later than the last progress even on a clock that stands still
		}
	}
}

func progressByHeartbeat(s *store) {
	note := recordProgress(s)
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		renewed, err := h.Handle.RenewLease(ctx, req)
		if err == nil {
			note(h, req.Fence.Run())
		}
		return renewed, err
	}
}

func progressByRefusal(s *store) {
	note := recordProgress(s)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if errors.Is(err, runstore.ErrConflict) {
			note(h, b.Run())
		}
		return done, err
	}
}

func progressByGuards(s *store) {
	note := recordProgress(s)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && b.IsZero() {
			note(h, b.Run())
		}
		return done, err
	}
}

func progressByEvents(s *store) {
	var mu sync.Mutex
	records := map[runstore.RunID]bool{} // by run: the last progress was made by records alone
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && !b.Guards().Fence.IsZero() && !b.IsZero() {
			records[b.Run()] = len(b.Events) == 0
		}
		return done, err
	}
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		run, err := h.Handle.GetRun(ctx, req.Fence.Run())
		mu.Lock()
		defer mu.Unlock()
		if most := run.Holder.MaxStall; err == nil && most > 0 && records[run.ID] {
			return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run.ID, Err: &runstore.NoProgressError{Stalled: 2 * most, MaxStall: most}}
		}
		return h.Handle.RenewLease(ctx, req)
	}
}

func progressWhileLive(s *store) {
	var mu sync.Mutex
	late := map[runstore.GrantID]bool{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		run, err := h.Handle.GetRun(ctx, b.Run())
		now, clockErr := h.Now(ctx)
		done, commitErr := h.Handle.Commit(ctx, b)
		if err == nil && clockErr == nil && commitErr == nil && !run.Live(now) {
			mu.Lock()
			defer mu.Unlock()
			late[b.Guards().Fence.Grant()] = true
		}
		return done, commitErr
	}
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		run, err := h.Handle.GetRun(ctx, req.Fence.Run())
		mu.Lock()
		defer mu.Unlock()
		if most := run.Holder.MaxStall; err == nil && most > 0 && late[req.Fence.Grant()] {
			return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run.ID, Err: &runstore.NoProgressError{Stalled: 2 * most, MaxStall: most}}
		}
		return h.Handle.RenewLease(ctx, req)
	}
}

func renewalDrops(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		req.Writes, req.ID = runstore.Writes{}, ""
		return h.Handle.RenewLease(ctx, req)
	}
}

func renewalTwice(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		req.ID = ""
		return h.Handle.RenewLease(ctx, req)
	}
}

func acquireFenced(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		granted, err := ownAcquire(ctx, h, req)
		if err == nil && granted.Ended {
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: req.Run, Err: &runstore.FencedError{}}
		}
		return granted, err
	}
}

func endUnsaid(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		granted, err := ownAcquire(ctx, h, req)
		granted.Ended = false
		return granted, err
	}
}

func releaseBare(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		done, err := h.Handle.ReleaseLease(ctx, req)
		if err == nil && done.Replayed {
			done.FirstSeq, done.Versions = 0, nil
		}
		return done, err
	}
}

func oneNamespace(s *store) {
	s.release = func(ctx context.Context, h *handle, req runstore.ReleaseRequest) (runstore.Committed, error) {
		b := runstore.NewBatch(req.Fence.Run(), req.Fence)
		b.ID, b.Writes, b.Release = runstore.BatchID(req.Fence.Grant()), req.Writes, true
		b.Require(req.Guards...)
		return h.Handle.Commit(ctx, b)
	}
}

func expiredAsReleased(s *store) {
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		granted, err := ownAcquire(ctx, h, req)
		if granted.Former == runstore.EndExpired {
			granted.Former = runstore.EndReleased
		}
		return granted, err
	}
}

func tokenLeftOut(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		records, err := h.Handle.ReadRecords(ctx, id, q)
		for i := range records {
			records[i].Created.Token, records[i].Updated.Token = 0, 0
		}
		return records, err
	}
}

func lastToken(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		records, err := h.Handle.ReadRecords(ctx, id, q)
		run, runErr := h.Handle.GetRun(ctx, id)
		for i := range records {
			if runErr == nil {
				records[i].Updated.Token = run.Token
			}
		}
		return records, err
	}
}

func unlistedListed(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		unlisted := spec.Unlisted
		spec.Unlisted = false
		created, err := ownCreate(ctx, h, spec)
		created.Run.Unlisted = unlisted
		return created, err
	}
}

func unlistedNeverRunnable(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		entries, err := h.Handle.ScanIndex(ctx, q)
		if q.Index == runstore.IndexRunnable {
			entries = slices.DeleteFunc(entries, func(e runstore.IndexEntry) bool { return e.Head.Unlisted })
		}
		return entries, err
	}
}
