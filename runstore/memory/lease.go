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
	err = h.write(ctx, "create run", spec.ID, spec.Check(), func(now time.Time) error {
		s := h.store
		if r, err := s.find(spec.ID); err == nil {
			created.Run = r.public()
			if l := spec.Lease; l != nil && l.Grant != "" && l.Grant == r.Grant && r.State == rules.Current {
				created.New, created.Lease = true, r.Lease(l.TTL)
			}
			return nil
		}
		old := s.runs[spec.ID]
		if old != nil && spec.Lease != nil {
			if err := old.NewGrant(spec.Lease.Grant); err != nil {
				return err
			}
		}
		r := &run{records: map[runstore.RecordKey]*record{}, batches: map[runstore.BatchID]result{}}
		if old != nil { // purged: its token and its versions go on
			r.Head, r.floor = old.Head, old.floor
		}
		r.ID, r.Status, r.CreatedAt, r.LastSeq = spec.ID, spec.Status, now, 0
		r.RunnableAt = spec.Runnable.Resolve(now)
		r.Epoch = s.epoch()
		if spec.Lease != nil {
			r.Head = r.Granted(withGrant(*spec.Lease), "", now)
			created.Lease = r.Lease(spec.Lease.TTL)
		}
		s.runs[spec.ID] = r
		s.order = append(s.order, r)
		s.apply(r, spec.Writes, created.Lease.Fence(), now)
		created.New, created.Run = true, r.public()
		return nil
	})
	return created, err
}

// AcquireLease implements runstore.RunStore.
func (h *Handle) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (lease runstore.Lease, err error) {
	err = h.write(ctx, "acquire lease", req.Run, req.Check(), func(now time.Time) error {
		r, err := h.store.find(req.Run)
		if err != nil {
			return err
		}
		replay, err := r.Acquire(req, now)
		if err != nil {
			return err
		}
		if !replay {
			if err := r.Guards(runstore.GuardsOf(req.Guards...), now, r.version); err != nil {
				return err
			}
			r.Head = r.Granted(withGrant(req.LeaseSpec), req.Preempt, now)
			h.store.apply(r, req.Writes, r.Lease(req.TTL).Fence(), now)
		}
		lease = r.Lease(req.TTL)
		return nil
	})
	return lease, err
}

// RenewLease implements runstore.RunStore.
func (h *Handle) RenewLease(ctx context.Context, req runstore.RenewRequest) (lease runstore.Lease, err error) {
	err = h.write(ctx, "renew lease", req.Fence.Run(), req.Check(), func(now time.Time) error {
		r, err := h.store.find(req.Fence.Run())
		if err != nil {
			return err
		}
		if err := r.Fence(req.Fence, now); err != nil {
			return err
		}
		r.Head = r.Renewed(req.TTL, now)
		lease = r.Lease(req.TTL)
		return nil
	})
	return lease, err
}

// ReleaseLease implements runstore.RunStore.
func (h *Handle) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	err = h.write(ctx, "release lease", req.Fence.Run(), req.Check(), func(now time.Time) error {
		r, err := h.store.find(req.Fence.Run())
		if err != nil {
			return err
		}
		replay, err := r.Release(req.Fence, now)
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
		done = h.store.apply(r, req.Writes, req.Fence, now)
		r.Head = r.Ended(rules.Released)
		return nil
	})
	return done, err
}

// Epochs implements runstore.Epocher.
func (h *Handle) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = h.read(ctx, "epochs", "", nil, func() error {
		epochs = slices.Clone(h.store.epochs)
		return nil
	})
	return epochs, err
}

// RaiseEpoch implements runstore.Epocher.
func (h *Handle) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
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

func withGrant(spec runstore.LeaseSpec) runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return spec
}
