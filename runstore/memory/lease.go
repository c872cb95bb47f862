package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements adapter.Core.
func (c core) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return write(ctx, c.store, func(now time.Time) (created runstore.Created, err error) {
		s := c.store
		if r, err := s.find(spec.ID); err == nil {
			if spec.Lease != nil {
				if granted, ok := r.repeatedGrant(*spec.Lease); ok {
					created = runstore.Created{New: true, Lease: granted.Lease, Committed: granted.Committed, Former: granted.Former}
				}
			}
			created.Run = r.public()
			return created, nil
		}
		old := s.runs[spec.ID]
		if old != nil && spec.Lease != nil {
			if err := old.NewGrant(spec.Lease.Grant); err != nil {
				return created, err
			}
		}
		r := &run{records: map[runstore.RecordKey]*record{}, results: map[string]result{}}
		if old != nil { // purged: its token and its versions continue
			r.Head, r.floor = old.Head, old.floor
		}
		r.ID, r.Status, r.Unlisted, r.CreatedAt, r.LastSeq = spec.ID, spec.Status, spec.Unlisted, now, 0
		r.RunnableAt = spec.Runnable.Resolve(now)
		r.Epoch = s.epoch()
		s.runs[spec.ID] = r
		s.order = append(s.order, r)
		if spec.Lease != nil {
			granted := s.grant(r, runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes}, now)
			created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
		} else {
			created.Committed = s.apply(r, spec.Writes, runstore.Fence{}, now)
		}
		created.New, created.Run = true, r.public()
		return created, nil
	})
}

// AcquireLease implements adapter.Core.
func (c core) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return write(ctx, c.store, func(now time.Time) (runstore.Granted, error) {
		r, err := c.store.find(req.Run)
		if err != nil {
			return runstore.Granted{}, err
		}
		if again, ok := r.repeatedGrant(req.LeaseSpec); ok {
			return again, nil
		}
		if _, err := r.Acquire(req, now); err != nil {
			return runstore.Granted{}, err
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), now, r.version); err != nil {
			return runstore.Granted{}, err
		}
		return c.store.grant(r, req, now), nil
	})
}

// grant makes a grant, applies the request's writes under it, and remembers their result for a
// repeat.
func (s *Store) grant(r *run, req runstore.AcquireRequest, now time.Time) runstore.Granted {
	r.Head = r.Granted(req, now)
	granted := runstore.Granted{Lease: r.Lease(req.TTL), Former: r.Holder.Former}
	granted.Committed = s.apply(r, req.Writes, granted.Fence(), now)
	if !req.Writes.IsZero() {
		r.remember(rules.GrantResult(req.Grant), result{FirstResult: rules.FirstResult{
			Committed: granted.Committed, Token: granted.Token, Former: granted.Former,
		}})
	}
	return granted
}

// repeatedGrant returns the result of a request that was granted before. ok is true if the grant
// is current or its result is remembered.
func (r *run) repeatedGrant(spec runstore.LeaseSpec) (granted runstore.Granted, ok bool) {
	var first *rules.FirstResult
	if remembered, ok := r.results[rules.GrantResult(spec.Grant)]; ok {
		first = &remembered.FirstResult
		first.Committed = remembered.replayed()
	}
	return r.RepeatedGrant(spec, first)
}

// RenewLease implements adapter.Core.
func (c core) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return write(ctx, c.store, func(now time.Time) (renewed runstore.Renewed, err error) {
		f := req.Fence
		r, err := c.store.find(f.Run())
		if err != nil {
			return renewed, err
		}
		if first, ok := r.results[rules.BatchResult(req.ID)]; ok {
			return runstore.Renewed{Lease: r.RenewedBefore(req, first.Committed), Committed: first.replayed()}, nil
		}
		if err := r.Renew(req, now); err != nil {
			return renewed, err
		}
		r.Head = r.Renewed(req.TTL, now)
		renewed.Lease = r.Lease(req.TTL)
		if !req.Writes.IsZero() {
			renewed.Committed = c.store.apply(r, req.Writes, f, now)
			r.remember(rules.BatchResult(req.ID), result{FirstResult: rules.FirstResult{Committed: renewed.Committed}})
		}
		return renewed, nil
	})
}

// ReleaseLease implements adapter.Core.
func (c core) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return write(ctx, c.store, func(now time.Time) (done runstore.Committed, err error) {
		f := req.Fence
		r, err := c.store.find(f.Run())
		if err != nil {
			return done, err
		}
		if first, ok := r.results[rules.ReleaseResult(f.Grant())]; ok && first.Token == f.Token() {
			return first.replayed(), nil
		}
		replay, err := r.Release(f, now)
		if err != nil {
			return done, err
		}
		if replay {
			return runstore.Committed{LastSeq: r.LastSeq, Time: now, Replayed: true}, nil
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), now, r.version); err != nil {
			return done, err
		}
		done = c.store.apply(r, req.Writes, f, now)
		r.Head = r.EndedAt(rules.Released, now)
		if !req.Writes.IsZero() {
			r.remember(rules.ReleaseResult(f.Grant()), result{FirstResult: rules.FirstResult{Committed: done, Token: f.Token()}})
		}
		return done, nil
	})
}

// Epochs implements runstore.EpochManager.
func (c core) Epochs(context.Context) ([]runstore.EpochChange, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return slices.Clone(c.store.epochs), nil
}

// RaiseEpoch implements runstore.EpochManager.
func (c core) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	return write(ctx, c.store, func(now time.Time) (runstore.Epoch, error) {
		s := c.store
		epoch := s.epoch() + 1
		if err := runstore.CheckEpoch(epoch); err != nil {
			return 0, err
		}
		s.epochs = append(s.epochs, runstore.EpochChange{Epoch: epoch, At: now, Reason: reason})
		s.last = max(s.last, runstore.Position(epoch.Floor()))
		for r := range maps.Values(s.runs) {
			r.Head = r.EndedAt(rules.Revoked, now)
		}
		return epoch, nil
	})
}
