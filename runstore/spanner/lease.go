package spanner

import (
	"context"
	"errors"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
	"github.com/tapestore/tapestore/runstore/rules"
)

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	err = s.op(ctx, "create run", spec.ID, spec.Check(), func(ctx context.Context) error {
		var lease *runstore.LeaseSpec
		if spec.Lease != nil {
			lease = withGrant(*spec.Lease)
		}
		for {
			unclear, found := false, false
			err := s.transact(ctx, "create", &request{
				run: spec.ID, keys: append(keysOf(runstore.Guards{}, spec.Writes), runstore.SummaryKey), epoch: true,
				decide: func(g *guarded, former *result) (*edit, error) {
					created = runstore.Created{}
					found, unclear = false, len(g.Head) > 0 && len(g.Head[0].Purging) > 0
					h, err := g.judged()
					if err != nil && former != nil { // created, and purged since
						created.New = true
						created.Run = runstore.Run{
							ID: spec.ID, Status: spec.Status, CreatedAt: former.Time.UTC(), LastSeq: runstore.Seq(former.LastSeq), Token: runstore.Token(former.Token),
						}
						if lease != nil {
							created.Lease = former.lease(spec.ID, *lease)
						}
						unclear = false
						return nil, nil
					}
					if err == nil {
						found = true
						created.Run = h.Run
						created.New = former != nil
						if lease != nil && h.Grant == lease.Grant && h.State == rules.Current {
							created.New, created.Lease = true, h.Lease(lease.TTL)
						} else if lease != nil && former != nil { // granted, and taken away since
							created.Lease = former.lease(spec.ID, *lease)
						}
						return nil, nil
					}
					if lease != nil && len(g.Head) > 0 { // it was purged
						if err := g.Head[0].rules().NewGrant(lease.Grant); err != nil {
							unclear = false
							return nil, err
						}
					}
					if unclear {
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
			case unclear: // what the run was is still being deleted
				if err := s.clear(ctx, spec.ID); err != nil {
					return err
				}
				continue
			case found: // it may have changed since; this is how it stands
				run, err := s.getRun(ctx, spec.ID)
				switch {
				case err == nil:
					created.Run = run
				case created.New && !errors.Is(err, runstore.ErrNotFound): // it was created
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

// create makes the run, in place of one that was purged perhaps.
func (e *edit) create(spec runstore.RunSpec, lease *runstore.LeaseSpec, created *runstore.Created) {
	h := &e.head
	h.Run, h.Status, h.Created, h.LastSeq, h.Runnable = stored(spec.ID), int64(spec.Status), nullTime(e.now), 0, nullTime(spec.Runnable.Resolve(e.now))
	if lease != nil {
		granted := e.grant(*lease, "")
		created.Lease = granted.Lease(lease.TTL)
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
	created.New, created.Run = true, e.head.rules().Run
	for _, r := range e.records {
		if runstore.RecordKey(r.Key) == runstore.SummaryKey {
			created.Run.Summary = r.public()
		}
	}
}

// grant gives the lease, under the epoch that was read.
func (e *edit) grant(spec runstore.LeaseSpec, reason string) rules.Head {
	h := e.head.rules()
	h.Epoch = runstore.Epoch(e.g.Epoch.Int64)
	h = h.Granted(spec, reason, e.now)
	e.head.grant(h)
	return h
}

// lease is one that a former attempt was granted.
func (r *result) lease(id runstore.RunID, spec runstore.LeaseSpec) runstore.Lease {
	return runstore.Lease{
		Run: id, Owner: spec.Owner, Reactor: spec.Reactor, Token: runstore.Token(r.Token), Grant: spec.Grant, TTL: spec.TTL,
		ExpiresAt: r.Time.UTC().Add(spec.TTL), Strict: spec.Strict,
	}
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (lease runstore.Lease, err error) {
	err = s.op(ctx, "acquire lease", req.Run, req.Check(), func(ctx context.Context) error {
		req := req
		req.LeaseSpec = *withGrant(req.LeaseSpec)
		guards := runstore.GuardsOf(req.Guards...)
		err := s.transact(ctx, "acquire", &request{
			run: req.Run, keys: keysOf(guards, req.Writes), epoch: true,
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				if err != nil && former == nil {
					return nil, err
				}
				e := newEdit(g)
				if former != nil { // granted; whatever became of it since, its fence tells
					lease = former.lease(req.Run, req.LeaseSpec)
					return nil, nil
				}
				e.strictly(guards.Fence, h)
				replay, err := h.Acquire(req, e.now)
				if err != nil {
					return nil, err
				}
				if replay {
					lease = h.Lease(req.TTL)
					return nil, nil
				}
				if err := h.Guards(guards, e.now, g.version); err != nil {
					return nil, err
				}
				granted := e.grant(req.LeaseSpec, req.Preempt)
				lease = granted.Lease(req.TTL)
				e.apply(req.Writes, lease.Token, lease.Owner)
				return e, nil
			},
		})
		if err != nil {
			lease = runstore.Lease{}
		}
		return err
	})
	return lease, err
}

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (lease runstore.Lease, err error) {
	f := req.Fence
	err = s.op(ctx, "renew lease", f.Run(), req.Check(), func(ctx context.Context) error {
		err := s.transact(ctx, "renew", &request{run: f.Run(), decide: func(g *guarded, _ *result) (*edit, error) {
			h, err := g.judged()
			if err != nil {
				return nil, err
			}
			e := newEdit(g)
			e.transient = true
			if err := h.Fence(f, e.now); err != nil {
				return nil, err
			}
			e.strictly(f, h)
			h = h.Renewed(req.TTL, e.now)
			e.head.grant(h)
			lease = h.Lease(req.TTL)
			return e, nil
		}})
		if err != nil {
			lease = runstore.Lease{}
		}
		return err
	})
	return lease, err
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f, guards := req.Fence, runstore.GuardsOf(req.Guards...)
	err = s.op(ctx, "release lease", f.Run(), req.Check(), func(ctx context.Context) error {
		err := s.transact(ctx, "release", &request{
			run: f.Run(), keys: keysOf(guards, req.Writes),
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				if former != nil {
					done = former.committed()
					done.Replayed = false
					return nil, nil
				}
				if err != nil {
					return nil, err
				}
				e := newEdit(g)
				e.strictly(f, h)
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

func withGrant(spec runstore.LeaseSpec) *runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return &spec
}

var errPurged = errors.New("spanner: the run existed, and was purged while it was read")
