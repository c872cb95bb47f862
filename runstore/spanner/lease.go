package spanner

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	defer s.waiters.After(&err, runstore.OnWrite, spec.ID)
	err = s.op(ctx, "create run", spec.ID, spec.Check(), func(ctx context.Context) error {
		var lease *runstore.LeaseSpec
		if spec.Lease != nil {
			lease = withGrant(*spec.Lease)
		}
		for {
			stillPurging, found, name := false, false, ""
			if lease != nil && !spec.Writes.IsZero() {
				name = rules.GrantResult(lease.Grant)
			}
			err := s.transact(ctx, "create", &request{
				run: spec.ID, name: name, keys: append(keysOf(runstore.Guards{}, spec.Writes), runstore.SummaryKey), epoch: true,
				decide: func(g *guarded, former *result) (*edit, error) {
					created = runstore.Created{}
					found, stillPurging = false, len(g.Head) > 0 && len(g.Head[0].Purging) > 0
					h, err := g.judged()
					if former != nil { // created before, by this call or a call with the same grant id
						stillPurging, found = false, err == nil
						created = former.created(g, spec, lease)
						return nil, nil
					}
					if err == nil {
						found = true
						created.Run = h.Run
						if lease != nil && h.Grant == lease.Grant && h.State == rules.Current {
							granted := currentGrant(h, lease.TTL)
							created.New, created.Lease, created.Committed, created.Former = true, granted.Lease, granted.Committed, granted.Former
						}
						return nil, nil
					}
					if lease != nil && len(g.Head) > 0 { // it was purged
						if err := g.Head[0].rules().NewGrant(lease.Grant); err != nil {
							stillPurging = false
							return nil, err
						}
					}
					if stillPurging {
						return nil, nil
					}
					e := newEdit(g)
					e.create(spec, lease, &created)
					return e, nil
				},
			})
			switch {
			case err != nil:
				created = runstore.Created{}
				return err
			case stillPurging: // rows of the purged run are still being deleted
				if err := s.deletePurged(ctx, spec.ID); err != nil {
					return err
				}
				continue
			case found: // the run may have changed since: return it as it is now
				run, err := s.getRun(ctx, spec.ID)
				switch {
				case err == nil:
					created.Run = run
				case created.New && !errors.Is(err, runstore.ErrNotFound): // created, but the run cannot be read
					created = runstore.Created{}
					return outcome.Unknown(err)
				case !created.New && errors.Is(err, runstore.ErrNotFound):
					created = runstore.Created{}
					return outcome.Unavailable(errPurged)
				case !created.New:
					created = runstore.Created{}
					return err
				}
			}
			return nil
		}
	})
	return created, err
}

// create inserts the run, possibly in place of a purged one, with its grant and writes, and the two
// marker rows by which readers recognize that the run exists (read.go).
func (e *edit) create(spec runstore.RunSpec, lease *runstore.LeaseSpec, created *runstore.Created) {
	h := &e.head
	h.Run, h.Status, h.Created, h.LastSeq, h.Runnable = stored(spec.ID), int64(spec.Status), nullTime(e.now), 0, nullTime(spec.Runnable.Resolve(e.now))
	h.Unlisted = spanner.NullBool{Bool: spec.Unlisted, Valid: spec.Unlisted}
	if lease != nil {
		granted := e.grant(runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *lease, Writes: spec.Writes})
		created.Lease, created.Former = granted.Lease(lease.TTL), granted.Holder.Former
	}
	k, own := e.g.key, spanner.NullInt64{Valid: true}
	e.insert("Events", []column{
		{"RunHash", k.hash}, {"Run", k.run}, {"Seq", 0}, {"Committed", spanner.CommitTimestamp}, {"Slot", 0}, {"Time", e.now},
		{"Token", 0}, {"Kind", []byte{}}, {"Owner", []byte{}}, {"Data", []byte{}},
	})
	e.insert("Records", []column{
		{"RunHash", k.hash}, {"Run", k.run}, {"Key", []byte{}}, {"Version", own}, {"CreatedSeq", own}, {"CreatedTime", e.now},
		{"UpdatedSeq", own}, {"UpdatedTime", e.now}, {"Value", []byte{}},
	})
	e.apply(spec.Writes, created.Lease.Token, created.Lease.Owner)
	created.New, created.Run, created.Committed = true, e.head.rules().Run, e.done
	for _, r := range e.records {
		if runstore.RecordKey(r.Key) == runstore.SummaryKey {
			created.Run.Summary = r.public()
		}
	}
}

// grant makes a new grant under the epoch that the guard statement read.
func (e *edit) grant(req runstore.AcquireRequest) rules.Head {
	h := e.head.rules()
	h.Epoch = runstore.Epoch(e.g.Epoch.Int64)
	h = h.Granted(req, e.now)
	e.head.grant(h)
	e.former = e.head.FormerEnd
	return h
}

// currentGrant returns the reply to a repeated request whose grant is current and whose result is
// not kept.
func currentGrant(h rules.Head, ttl time.Duration) runstore.Granted {
	return runstore.Granted{
		Lease: h.Lease(ttl), Former: h.Holder.Former,
		Committed: runstore.Committed{LastSeq: h.LastSeq, Time: h.Holder.GrantedAt, Replayed: true},
	}
}

// granted returns the reply that an earlier request for this grant got. The grant may have ended
// since.
func (r *result) granted(g *guarded, id runstore.RunID, spec runstore.LeaseSpec) runstore.Granted {
	granted := runstore.Granted{Ended: true, Committed: r.committed(g), Former: runstore.GrantEnd(r.FormerEnd.Int64)}
	granted.Lease = rules.FormerLease(id, spec, runstore.Token(r.Token), granted.Committed)
	if h, err := g.judged(); err == nil && h.State == rules.Current && h.Grant == spec.Grant {
		granted.Lease, granted.Ended = h.Lease(spec.TTL), false
	}
	return granted
}

// created returns the reply that an earlier creation got, with the run as it is now, or as created
// if the run is gone.
func (r *result) created(g *guarded, spec runstore.RunSpec, lease *runstore.LeaseSpec) runstore.Created {
	created := runstore.Created{New: true, Committed: r.committed(g)}
	if lease != nil {
		granted := r.granted(g, spec.ID, *lease)
		created.Lease, created.Former = granted.Lease, granted.Former
	}
	h, err := g.judged()
	if err != nil {
		h.Run = runstore.Run{
			ID: spec.ID, Status: spec.Status, Unlisted: spec.Unlisted, CreatedAt: r.Time.UTC(), LastSeq: runstore.Seq(r.LastSeq), Token: runstore.Token(r.Token),
		}
	}
	created.Run = h.Run
	return created
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	defer s.waiters.After(&err, runstore.OnWrite, req.Run)
	err = s.op(ctx, "acquire lease", req.Run, req.Check(), func(ctx context.Context) error {
		req, name := req, ""
		req.LeaseSpec = *withGrant(req.LeaseSpec)
		if !req.Writes.IsZero() {
			name = rules.GrantResult(req.Grant)
		}
		guards := runstore.GuardsOf(req.Guards...)
		err := s.transact(ctx, "acquire", &request{
			run: req.Run, name: name, keys: keysOf(guards, req.Writes), epoch: true,
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				if former != nil {
					granted = former.granted(g, req.Run, req.LeaseSpec)
					return nil, nil
				}
				if err != nil {
					return nil, err
				}
				e := newEdit(g)
				e.boundByStrictLease(guards.Fence, h)
				replay, err := h.Acquire(req, e.now)
				if err != nil {
					return nil, err
				}
				if replay {
					granted = currentGrant(h, req.TTL)
					return nil, nil
				}
				if err := h.Guards(guards, e.now, g.version); err != nil {
					return nil, err
				}
				h = e.grant(req)
				e.apply(req.Writes, h.Token, req.Owner)
				granted = runstore.Granted{Lease: h.Lease(req.TTL), Former: h.Holder.Former, Committed: e.done}
				return e, nil
			},
		})
		if err != nil {
			granted = runstore.Granted{}
		}
		return err
	})
	return granted, err
}

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	f := req.Fence
	if !req.Writes.IsZero() {
		defer s.waiters.After(&err, runstore.OnWrite, f.Run())
	}
	err = s.op(ctx, "renew lease", f.Run(), req.Check(), func(ctx context.Context) error {
		err := s.transact(ctx, "renew", &request{
			run: f.Run(), name: rules.BatchResult(req.ID), keys: keysOf(runstore.Guards{}, req.Writes),
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				if former != nil {
					h.ID = f.Run() // also of a run that is gone
					done := former.committed(g)
					renewed = runstore.Renewed{Lease: h.RenewedBefore(req, done), Committed: done}
					return nil, nil
				}
				if err != nil {
					return nil, err
				}
				e := newEdit(g)
				if err := h.Renew(req, e.now); err != nil {
					return nil, err
				}
				e.boundByStrictLease(f, h)
				h = h.Renewed(req.TTL, e.now)
				e.head.grant(h)
				renewed = runstore.Renewed{Lease: h.Lease(req.TTL)}
				if e.noResult = req.Writes.IsZero(); !e.noResult {
					e.apply(req.Writes, f.Token(), f.Owner())
					renewed.Committed = e.done
				}
				return e, nil
			},
		})
		if err != nil {
			renewed = runstore.Renewed{}
		}
		return err
	})
	return renewed, err
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	defer s.waiters.After(&err, runstore.OnRelease, req.Fence.Run())
	f, guards, name := req.Fence, runstore.GuardsOf(req.Guards...), ""
	if !req.Writes.IsZero() {
		name = rules.ReleaseResult(f.Grant())
	}
	err = s.op(ctx, "release lease", f.Run(), req.Check(), func(ctx context.Context) error {
		err := s.transact(ctx, "release", &request{
			run: f.Run(), name: name, keys: keysOf(guards, req.Writes),
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				if former != nil && runstore.Token(former.Token) == f.Token() {
					done = former.committed(g)
					return nil, nil
				}
				if err != nil {
					return nil, err
				}
				e := newEdit(g)
				e.boundByStrictLease(f, h)
				replay, err := h.Release(f, e.now)
				if err != nil {
					return nil, err
				}
				if replay {
					done = runstore.Committed{LastSeq: h.LastSeq, Time: e.now, Replayed: true}
					return nil, nil
				}
				if err := h.Guards(guards, e.now, g.version); err != nil {
					return nil, err
				}
				e.apply(req.Writes, f.Token(), f.Owner())
				e.head.grant(e.head.rules().Ended(rules.Released))
				done = e.done
				return e, nil
			},
		})
		if err != nil {
			done = runstore.Committed{}
		}
		return err
	})
	return done, err
}

// withGrant returns spec with a new grant id if it has none.
func withGrant(spec runstore.LeaseSpec) *runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return &spec
}

var errPurged = errors.New("spanner: the run existed, and was purged while it was read")
