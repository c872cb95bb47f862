package spanner

import (
	"context"
	"errors"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements adapter.Core.
func (s *engine) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	lease, name := spec.Lease, ""
	if lease != nil && !spec.Writes.IsZero() {
		name = rules.GrantResult(lease.Grant)
	}
	for {
		stillPurging, found := false, false
		err := s.transact(ctx, "create", &request{
			run: spec.ID, name: name, keys: append(keysOf(runstore.Guards{}, spec.Writes), runstore.SummaryKey), epoch: true,
			decide: func(g *guarded, former *result) (*edit, error) {
				h, err := g.judged()
				found, stillPurging = err == nil, false
				created = g.repeatedCreation(spec, former)
				if found {
					created.Run = h.Run
				}
				if found || created.New {
					return nil, nil
				}
				if lease != nil && len(g.Head) > 0 { // it was purged
					if err := g.Head[0].rules().NewGrant(lease.Grant); err != nil {
						return nil, err
					}
				}
				if stillPurging = len(g.Head) > 0 && len(g.Head[0].Purging) > 0; stillPurging {
					return nil, nil
				}
				e := newEdit(g)
				e.create(spec, &created)
				return e, nil
			},
		})
		switch {
		case err != nil:
			return created, err
		case stillPurging: // rows of the purged run are still being deleted
			if err := s.deletePurged(ctx, spec.ID, false); err != nil {
				s.purger.start()
				return created, err
			}
			continue
		case !found:
			return created, nil
		}
		run, err := s.GetRun(ctx, spec.ID) // the run may have changed since: return it as it is now
		switch {
		case err == nil:
			created.Run = run
		case created.New && !errors.Is(err, runstore.ErrNotFound): // created, but the run cannot be read
			return created, outcome.Unknown(err)
		case !created.New && errors.Is(err, runstore.ErrNotFound):
			return created, outcome.Unavailable(errPurged)
		case !created.New:
			return created, err
		}
		return created, nil
	}
}

// create inserts the run, possibly in place of a purged one, with its grant and writes, and the two
// marker rows by which readers recognize that the run exists (read.go).
func (e *edit) create(spec runstore.RunSpec, created *runstore.Created) {
	h := &e.head
	h.Run, h.Status, h.Created, h.LastSeq, h.Runnable = stored(spec.ID), int64(spec.Status), nullTime(e.now), 0, nullTime(spec.Runnable.Resolve(e.now))
	h.Unlisted = spanner.NullBool{Bool: spec.Unlisted, Valid: spec.Unlisted}
	if spec.Lease != nil {
		granted := e.grant(runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes})
		created.Lease, created.Former = granted.Lease(spec.Lease.TTL), granted.Holder.Former
	}
	k, own := e.g.key, spanner.NullInt64{Valid: true}
	e.insertEvent(runstore.Event{Time: e.now, Data: []byte{}}, 0)
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

// repeatedGrant returns the reply to the repeat of a request that made a grant of the run, and ok
// true, if the result of the request is stored, or else if the grant is current. The run may be
// gone.
func (g *guarded) repeatedGrant(id runstore.RunID, spec runstore.LeaseSpec, former *result) (granted runstore.Granted, ok bool) {
	h, _ := g.judged() // no grant is current in the zero head of a run that is gone
	h.ID = id
	if former == nil {
		return h.RepeatedGrant(spec, nil)
	}
	first := rules.FirstResult{Committed: former.committed(g), Token: runstore.Token(former.Token), Former: runstore.GrantEnd(former.FormerEnd.Int64)}
	granted, ok = h.RepeatedGrant(spec, &first)
	granted.Committed.Replayed = first.Replayed
	return granted, ok
}

// repeatedCreation returns the reply to the repeat of a creation, with the run as created. New is
// false if this request is no repeat.
func (g *guarded) repeatedCreation(spec runstore.RunSpec, former *result) (created runstore.Created) {
	if spec.Lease != nil {
		granted, ok := g.repeatedGrant(spec.ID, *spec.Lease, former)
		created = runstore.Created{New: ok, Lease: granted.Lease, Committed: granted.Committed, Former: granted.Former}
	} else if former != nil {
		created = runstore.Created{New: true, Committed: former.committed(g)}
	}
	if former != nil {
		created.Run = runstore.Run{
			ID: spec.ID, Status: spec.Status, Unlisted: spec.Unlisted, CreatedAt: former.Time.UTC(), LastSeq: runstore.Seq(former.LastSeq), Token: runstore.Token(former.Token),
		}
	}
	return created
}

// AcquireLease implements adapter.Core.
func (s *engine) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	guards, name := runstore.GuardsOf(req.Guards...), ""
	if !req.Writes.IsZero() {
		name = rules.GrantResult(req.Grant)
	}
	err = s.transact(ctx, "acquire", &request{
		run: req.Run, name: name, keys: keysOf(guards, req.Writes), epoch: true,
		decide: func(g *guarded, former *result) (*edit, error) {
			var repeated bool
			if granted, repeated = g.repeatedGrant(req.Run, req.LeaseSpec, former); repeated {
				return nil, nil
			}
			h, err := g.judged()
			if err != nil {
				return nil, err
			}
			e := newEdit(g)
			e.boundByStrictLease(guards.Fence, h)
			if _, err := h.Acquire(req, e.now); err != nil {
				return nil, err
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
	return granted, err
}

// RenewLease implements adapter.Core.
func (s *engine) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	f := req.Fence
	err = s.transact(ctx, "renew", &request{
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
	return renewed, err
}

// ReleaseLease implements adapter.Core.
func (s *engine) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f, guards, name := req.Fence, runstore.GuardsOf(req.Guards...), ""
	if !req.Writes.IsZero() {
		name = rules.ReleaseResult(f.Grant())
	}
	err = s.transact(ctx, "release", &request{
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
			e.head.grant(e.head.rules().EndedAt(rules.Released, e.now))
			done = e.done
			return e, nil
		},
	})
	return done, err
}

var errPurged = errors.New("spanner: the run existed, and was purged while it was read")
