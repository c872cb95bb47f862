package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

// CreateRun implements runstore.RunStore.
func (h *Handle) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	defer h.store.waiters().After(&err, runstore.OnWrite, spec.ID)
	err = h.write(ctx, "create run", spec.ID, spec.Check(), func(now time.Time) error {
		s := h.store
		if r, err := s.find(spec.ID); err == nil {
			created.Run = r.public()
			if l := spec.Lease; l != nil && l.Grant != "" {
				if granted, ok := r.repeatedGrant(*l); ok {
					created.New, created.Lease, created.Committed, created.Former = true, granted.Lease, granted.Committed, granted.Former
				}
			}
			return nil
		}
		old := s.runs[spec.ID]
		if old != nil && spec.Lease != nil {
			if err := old.NewGrant(spec.Lease.Grant); err != nil {
				return err
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
		return nil
	})
	return created, err
}

// AcquireLease implements runstore.RunStore.
func (h *Handle) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	defer h.store.waiters().After(&err, runstore.OnWrite, req.Run)
	err = h.write(ctx, "acquire lease", req.Run, req.Check(), func(now time.Time) error {
		r, err := h.store.find(req.Run)
		if err != nil {
			return err
		}
		if again, ok := r.repeatedGrant(req.LeaseSpec); ok {
			granted = again
			return nil
		}
		if _, err := r.Acquire(req, now); err != nil {
			return err
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), now, r.version); err != nil {
			return err
		}
		granted = h.store.grant(r, req, now)
		return nil
	})
	return granted, err
}

// grant makes a grant, applies the request's writes under it, and remembers their result for a
// repeat.
func (s *Store) grant(r *run, req runstore.AcquireRequest, now time.Time) runstore.Granted {
	if req.Grant == "" {
		req.Grant = runstore.NewGrantID()
	}
	r.Head = r.Granted(req, now)
	granted := runstore.Granted{Lease: r.Lease(req.TTL), Former: r.Holder.Former}
	granted.Committed = s.apply(r, req.Writes, granted.Fence(), now)
	if !req.Writes.IsZero() {
		r.remember(rules.GrantResult(req.Grant), result{Committed: granted.Committed, token: granted.Token, former: granted.Former})
	}
	return granted
}

// repeatedGrant returns the result of a request that was granted before. ok is true if the grant
// is current or its result is remembered.
func (r *run) repeatedGrant(spec runstore.LeaseSpec) (granted runstore.Granted, ok bool) {
	if spec.Grant == "" {
		return granted, false
	}
	current := r.State == rules.Current && r.Grant == spec.Grant
	granted.Ended = !current
	first, remembered := r.results[rules.GrantResult(spec.Grant)]
	switch {
	case remembered:
		granted.Committed, granted.Former = first.replayed(), first.former
		granted.Lease = rules.FormerLease(r.ID, spec, first.token, first.Committed)
	case current:
		granted.Committed = runstore.Committed{LastSeq: r.LastSeq, Time: r.Holder.GrantedAt, Replayed: true}
		granted.Former = r.Holder.Former
	}
	if current {
		granted.Lease = r.Lease(spec.TTL)
	}
	return granted, remembered || current
}

// RenewLease implements runstore.RunStore.
func (h *Handle) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	f := req.Fence
	if !req.Writes.IsZero() {
		defer h.store.waiters().After(&err, runstore.OnWrite, f.Run())
	}
	err = h.write(ctx, "renew lease", f.Run(), req.Check(), func(now time.Time) error {
		r, err := h.store.find(f.Run())
		if err != nil {
			return err
		}
		if first, ok := r.results[rules.BatchResult(req.ID)]; ok {
			renewed = runstore.Renewed{Lease: r.RenewedBefore(req, first.Committed), Committed: first.replayed()}
			return nil
		}
		if err := r.Renew(req, now); err != nil {
			return err
		}
		r.Head = r.Renewed(req.TTL, now)
		renewed.Lease = r.Lease(req.TTL)
		if !req.Writes.IsZero() {
			renewed.Committed = h.store.apply(r, req.Writes, f, now)
			r.remember(rules.BatchResult(req.ID), result{Committed: renewed.Committed})
		}
		return nil
	})
	return renewed, err
}

// ReleaseLease implements runstore.RunStore.
func (h *Handle) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f := req.Fence
	defer h.store.waiters().After(&err, runstore.OnRelease, f.Run())
	err = h.write(ctx, "release lease", f.Run(), req.Check(), func(now time.Time) error {
		r, err := h.store.find(f.Run())
		if err != nil {
			return err
		}
		if first, ok := r.results[rules.ReleaseResult(f.Grant())]; ok && first.token == f.Token() {
			done = first.replayed()
			return nil
		}
		replay, err := r.Release(f, now)
		if err != nil {
			return err
		}
		if replay {
			done = runstore.Committed{LastSeq: r.LastSeq, Time: now, Replayed: true}
			return nil
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), now, r.version); err != nil {
			return err
		}
		done = h.store.apply(r, req.Writes, f, now)
		r.Head = r.Ended(rules.Released)
		if !req.Writes.IsZero() {
			r.remember(rules.ReleaseResult(f.Grant()), result{Committed: done, token: f.Token()})
		}
		return nil
	})
	return done, err
}

// Epochs implements runstore.EpochManager.
func (h *Handle) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = h.read(ctx, "epochs", "", nil, func() error {
		epochs = slices.Clone(h.store.epochs)
		return nil
	})
	return epochs, err
}

// RaiseEpoch implements runstore.EpochManager.
func (h *Handle) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
	defer h.store.waiters().AfterRaise(&err)
	err = h.write(ctx, "raise epoch", "", runstore.CheckReason(reason), func(now time.Time) error {
		s := h.store
		epoch = s.epoch() + 1
		if err := runstore.CheckEpoch(epoch); err != nil {
			return err
		}
		s.epochs = append(s.epochs, runstore.EpochChange{Epoch: epoch, At: now, Reason: reason})
		s.last = max(s.last, runstore.Position(epoch.Floor()))
		for r := range maps.Values(s.runs) {
			r.Head = r.Ended(rules.Revoked)
		}
		return nil
	})
	return epoch, err
}
