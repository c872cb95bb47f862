package bigtable

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
	"github.com/tapestore/tapestore/runstore/rules"
)

// CreateRun implements runstore.RunStore: one read, the entries of the run, and one
// conditional mutation.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	err = s.op(ctx, "create run", spec.ID, spec.Check(), func(ctx context.Context) error {
		var lease *runstore.LeaseSpec
		if spec.Lease != nil {
			lease = withGrant(*spec.Lease)
		}
		n := needs{fresh: true, epoch: true, keys: append(keysOf(runstore.Guards{}, spec.Writes), runstore.SummaryKey)}
		existed := false
		e, err := s.write(ctx, spec.ID, n, func(r *run, now time.Time) (*edit, error) {
			created = runstore.Created{} // whatever was decided before
			if existed = r.exists(); existed {
				h := r.head.rules(r.id, r.beat)
				created.Run = h.Run
				if lease != nil && h.Grant == lease.Grant && h.State == rules.Current {
					created.New, created.Lease = true, h.Lease(lease.TTL)
				}
				return nil, nil
			}
			r.records, r.tail = map[runstore.RecordKey]*meta{}, tail{}
			e := newEdit(r, now)
			h := &e.head
			if r.stored == nil {
				e.begin(s.epoch())
			}
			e.creates = true
			h.Life, h.LifeBy, h.Purged, h.Seq = h.Rev, e.nonce, false, 0
			h.Status, h.Created = int32(spec.Status), e.now
			e.rows = append(e.rows, put(h.runsPlace(r.id).rowKey(), "", nil))
			if h.MarkRev == 0 { // a purged run has one until it was cleared away
				e.mark()
			}
			var token runstore.Token
			var owner runstore.Owner
			if lease != nil {
				before := h.rules(r.id, 0) // of a purged run, or of none
				before.Former = r.former
				if err := before.NewGrant(lease.Grant); err != nil {
					return nil, err
				}
				granted := e.grant(before, *lease, "")
				created.Lease = granted.Lease(lease.TTL)
				token, owner = created.Lease.Token, created.Lease.Owner
			}
			e.apply(spec.Writes, token, owner, false)
			if err := e.fits(); err != nil {
				return nil, err
			}
			if !spec.Runnable.IsZero() {
				e.runnable(spec.Runnable)
			}
			return e, nil
		})
		switch {
		case err != nil:
			created = runstore.Created{}
			return err
		case existed:
			if created.Run, err = s.getRun(ctx, spec.ID); errors.Is(err, runstore.ErrNotFound) {
				err = outcome.Unavailable(errPurged)
			}
			return err
		}
		created.New, created.Run = true, e.head.rules(spec.ID, 0).Run
		for _, w := range spec.Writes.Records {
			if m := e.summary(w); m != nil {
				created.Run.Summary = m.record(runstore.SummaryKey, append([]byte{}, w.Value...))
			}
		}
		return nil
	})
	return created, err
}

func (e *edit) summary(w runstore.RecordWrite) *meta {
	if w.Key != runstore.SummaryKey || w.Delete {
		return nil
	}
	return e.records[w.Key]
}

// AcquireLease implements runstore.RunStore: one read and one conditional mutation. The
// server's clock is asked between them where the expiry of the current grant decides
// (expiryDecides).
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (lease runstore.Lease, err error) {
	err = s.op(ctx, "acquire lease", req.Run, req.Check(), func(ctx context.Context) error {
		req := req
		req.LeaseSpec = *withGrant(req.LeaseSpec)
		guards := runstore.GuardsOf(req.Guards...)
		n := needs{events: len(req.Writes.Events) > 0, fresh: true, epoch: true, keys: keysOf(guards, req.Writes)}
		n.clock, n.strict = s.expiryDecides(req.Grant, guards.Fence), !guards.Fence.IsZero()
		_, err := s.write(ctx, req.Run, n, func(r *run, now time.Time) (*edit, error) {
			lease = runstore.Lease{}
			if !r.exists() {
				return nil, runstore.ErrNotFound
			}
			h := r.judged()
			replay, err := h.Acquire(req, now)
			if err != nil {
				return nil, err
			}
			if replay {
				lease = h.Lease(req.TTL)
				return nil, nil
			}
			if err := h.Guards(guards, now, r.version); err != nil {
				return nil, err
			}
			e := newEdit(r, now)
			granted := e.grant(h, req.LeaseSpec, req.Preempt)
			lease = granted.Lease(req.TTL)
			e.apply(req.Writes, lease.Token, lease.Owner, false)
			if err := e.fits(); err != nil {
				return nil, err
			}
			return e, nil
		})
		if err != nil {
			lease = runstore.Lease{}
		}
		return err
	})
	return lease, err
}

// expiryDecides returns the needs.clock of a request for the lease under grant. With the
// holder's consent the expiry matters only if the lease is strict: the request is judged
// as a commit under that fence. Without it the expiry matters unless the lease is live
// beyond doubt.
func (s *Store) expiryDecides(grant runstore.GrantID, consent runstore.Fence) func(r *run) bool {
	return func(r *run) bool {
		switch {
		case rules.GrantState(r.head.State) != rules.Current || string(r.head.Grant) == string(grant):
			return false
		case !consent.IsZero():
			return strict(consent)(r)
		default:
			return !s.surelyLive(r)
		}
	}
}

// RenewLease implements runstore.RunStore: one conditional mutation.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (lease runstore.Lease, err error) {
	f := req.Fence
	err = s.op(ctx, "renew lease", f.Run(), req.Check(), func(ctx context.Context) error {
		_, err := s.write(ctx, f.Run(), needs{clock: strict(f), strict: true}, func(r *run, now time.Time) (*edit, error) {
			if !r.exists() {
				return nil, runstore.ErrNotFound
			}
			h := r.head.rules(r.id, r.beat)
			if err := h.Fence(f, now); err != nil {
				return nil, err
			}
			e := newEdit(r, now)
			renewed := h.Renewed(req.TTL, e.time())
			if !e.time().Add(req.TTL).Truncate(runstore.TimePrecision).Before(h.ExpiresAt) { // even if it is no later: Bigtable's stamp is
				e.head.Expires, e.head.TTL = runstore.Micros(renewed.ExpiresAt), req.TTL.Microseconds()
				e.beat()
			}
			lease = renewed.Lease(req.TTL)
			return e, nil
		})
		if err != nil {
			lease = runstore.Lease{}
		}
		return err
	})
	return lease, err
}

// ReleaseLease implements runstore.RunStore: one conditional mutation.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f := req.Fence
	err = s.op(ctx, "release lease", f.Run(), req.Check(), func(ctx context.Context) error {
		guards := runstore.GuardsOf(req.Guards...)
		n := needs{keys: keysOf(guards, req.Writes), clock: strict(f), strict: true, events: len(req.Writes.Events) > 0}
		e, err := s.write(ctx, f.Run(), n, func(r *run, now time.Time) (*edit, error) {
			if !r.exists() {
				return nil, runstore.ErrNotFound
			}
			h := r.head.rules(r.id, r.beat)
			replay, err := h.Release(f, now)
			if err != nil {
				return nil, err
			}
			if replay {
				done = runstore.Committed{LastSeq: h.LastSeq, Time: now, Replayed: true}
				return nil, nil
			}
			if err := h.Guards(guards, now, r.version); err != nil {
				return nil, err
			}
			e := newEdit(r, now)
			e.apply(req.Writes, f.Token(), f.Owner(), false)
			if err := e.fits(); err != nil {
				return nil, err
			}
			e.end(false)
			return e, nil
		})
		if e != nil {
			done = e.done
		}
		return err
	})
	return done, err
}

var errPurged = errors.New("bigtable: the run existed, and was purged while it was read")

func withGrant(spec runstore.LeaseSpec) *runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return &spec
}
