package bigtable

import (
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements adapter.Core: one read, one write of the run's mark and index entries, and one
// conditional mutation.
func (s *engine) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	n := needs{fresh: true, epoch: true, keys: append(keysOf(runstore.Guards{}, spec.Writes), runstore.SummaryKey)}
	n.replays = spec.Lease != nil && !spec.Writes.IsZero()
	existed := false
	e, err := s.write(ctx, spec.ID, n, func(r *cachedRun, now time.Time) (*edit, error) {
		created = runstore.Created{} // drop an earlier decision
		if existed = r.exists(); existed {
			h := r.head.rules(r.id, r.beat)
			created.Run = h.Run
			if spec.Lease != nil {
				if first, ok := r.repeatedGrant(h, *spec.Lease); ok {
					created.New, created.Lease, created.Committed, created.Former = true, first.Lease, first.Committed, first.Former
				}
			}
			return nil, nil
		}
		r.records, r.tail = map[runstore.RecordKey]*recordMeta{}, tail{}
		e := newEdit(r, now)
		h := &e.head
		if r.stored == nil {
			e.startIn(s.currentEpoch())
		}
		e.creates = true
		h.Generation, h.GenerationBy, h.Purged, h.Seq, h.PagedFrom = h.Rev, e.nonce, false, 0, 0
		h.allowOpenPages()
		h.Status, h.Created, h.ListedRev, h.ListedBy = int32(spec.Status), e.now, 0, 0
		if h.Unlisted = spec.Unlisted; h.Unlisted {
			h.requires(formatGrants)
		} else {
			e.rows = append(e.rows, put(h.runsEntry(r.id).rowKey(), "", nil))
		}
		if h.MarkRev == 0 { // a purged run has one until the orphan scan has deleted its rows
			e.setMark()
		}
		if spec.Lease == nil {
			if err := e.apply(spec.Writes, 0, "", false, "", result{}); err != nil {
				return nil, err
			}
			created.Committed = e.done
		} else {
			before := r.withGrants(h.rules(r.id, 0)) // of a purged run, or of a run that never existed
			if err := before.NewGrant(spec.Lease.Grant); err != nil {
				return nil, err
			}
			granted, err := e.grant(before, runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes})
			if err != nil {
				return nil, err
			}
			created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
		}
		if !spec.Runnable.IsZero() {
			e.setRunnable(spec.Runnable)
		}
		return e, nil
	})
	if err != nil {
		return created, err
	}
	if existed {
		run, err := s.GetRun(ctx, spec.ID)
		switch {
		case err == nil:
			created.Run = run
		case created.New && errors.Is(err, runstore.ErrNotFound): // it was created, and purged since
		case created.New:
			return created, outcome.Unknown(err)
		case errors.Is(err, runstore.ErrNotFound):
			return created, outcome.Unavailable(errPurged)
		default:
			return created, err
		}
		return created, nil
	}
	created.New, created.Run = true, e.head.rules(spec.ID, 0).Run
	for _, w := range spec.Writes.Records {
		if m := e.summary(w); m != nil {
			created.Run.Summary = m.record(runstore.SummaryKey, append([]byte{}, w.Value...))
		}
	}
	return created, nil
}

func (e *edit) summary(w runstore.RecordWrite) *recordMeta {
	if w.Key != runstore.SummaryKey || w.Delete {
		return nil
	}
	return e.records[w.Key]
}

// AcquireLease implements adapter.Core: one read and one conditional mutation. It reads the server's clock
// between them if the expiry of the current grant decides (expiryDecides).
func (s *engine) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	guards := runstore.GuardsOf(req.Guards...)
	n := needs{events: len(req.Writes.Events) > 0, fresh: true, epoch: true, keys: keysOf(guards, req.Writes)}
	n.replays = !req.Writes.IsZero()
	n.clock, n.strict, n.id = s.expiryDecides(req.Grant, guards.Fence), !guards.Fence.IsZero(), true
	_, err = s.write(ctx, req.Run, n, func(r *cachedRun, now time.Time) (*edit, error) {
		if !r.exists() {
			return nil, runstore.ErrNotFound
		}
		h, ok := r.judgedHead(), false
		if granted, ok = r.repeatedGrant(h, req.LeaseSpec); ok {
			return r.replay(), nil
		}
		if _, err := h.Acquire(req, now); err != nil {
			return nil, err
		}
		if err := h.Guards(guards, now, r.version); err != nil {
			return nil, err
		}
		e := newEdit(r, now)
		applied, err := e.grant(h, req)
		granted = applied
		return e, err
	})
	return granted, err
}

// repeatedGrant returns the result of a request that was granted before. ok is true if the grant is
// current or its result is remembered. Only results of requests with writes are remembered, so the
// others need no read of the results.
func (r *cachedRun) repeatedGrant(h rules.Head, spec runstore.LeaseSpec) (granted runstore.Granted, ok bool) {
	var first *rules.FirstResult
	if remembered, ok := r.results[rules.GrantResult(spec.Grant)]; ok {
		first = &rules.FirstResult{
			Committed: remembered.committed(), Token: runstore.Token(remembered.Token), Former: runstore.GrantEnd(remembered.Former),
		}
	}
	return h.RepeatedGrant(spec, first)
}

// expiryDecides returns the needs.clock of a request for the lease under grant. With the holder's
// consent, its fence, the expiry decides only if the lease is strict: then the request is judged like a
// commit under that fence. Without consent the expiry decides unless the lease is certainly live.
func (s *engine) expiryDecides(grant runstore.GrantID, consent runstore.Fence) func(r *cachedRun) bool {
	return func(r *cachedRun) bool {
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

// RenewLease implements adapter.Core: one conditional mutation. It reads the server's clock first if an
// expiry or the holder's MaxStall decides (stallDecides), and writes the rows of index entries and large
// values first, as [engine.Commit] does.
func (s *engine) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	f := req.Fence
	n := needs{clock: s.stallDecides(req), strict: true, id: req.ID != "", results: req.ID != "", events: len(req.Writes.Events) > 0}
	n.keys = keysOf(runstore.Guards{}, req.Writes)
	_, err = s.write(ctx, f.Run(), n, func(r *cachedRun, now time.Time) (*edit, error) {
		renewed = runstore.Renewed{} // drop an earlier decision
		if !r.exists() {
			return nil, runstore.ErrNotFound
		}
		h := r.head.rules(r.id, r.beat)
		if first, repeated := r.results[rules.BatchResult(req.ID)]; repeated {
			renewed.Committed = first.committed()
			renewed.Lease = h.RenewedBefore(req, renewed.Committed)
			return r.replay(), nil
		}
		if err := h.Renew(req, now); err != nil {
			return nil, err
		}
		e := newEdit(r, now)
		after := h.Renewed(req.TTL, e.time())
		if e.head.renew(after) {
			e.stampBeat()
		}
		renewed.Lease = after.Lease(req.TTL)
		if !req.Writes.IsZero() {
			if err := e.apply(req.Writes, f.Token(), f.Owner(), false, rules.BatchResult(req.ID), result{}); err != nil {
				return nil, err
			}
			renewed.Committed = e.done
		}
		return e, nil
	})
	return renewed, err
}

// stallDecides returns the needs.clock of a renewal. The clock decides if the lease is strict, and if the
// holder's last progress may be longer ago than MaxStall.
func (s *engine) stallDecides(req runstore.RenewRequest) func(r *cachedRun) bool {
	return func(r *cachedRun) bool {
		h := &r.head
		if strict(req.Fence)(r) {
			return true
		}
		return h.MaxStall > 0 && rules.GrantState(h.State) == rules.Current && h.Token == int64(req.Fence.Token()) &&
			!rules.IsProgress(req.Writes) && !s.surelyBefore(h.Progressed+h.MaxStall)
	}
}

// ReleaseLease implements adapter.Core: one conditional mutation.
func (s *engine) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f, guards := req.Fence, runstore.GuardsOf(req.Guards...)
	n := needs{keys: keysOf(guards, req.Writes), clock: strict(f), strict: true, id: true, events: len(req.Writes.Events) > 0}
	n.replays = !req.Writes.IsZero()
	e, err := s.write(ctx, f.Run(), n, func(r *cachedRun, now time.Time) (*edit, error) {
		if !r.exists() {
			return nil, runstore.ErrNotFound
		}
		name := rules.ReleaseResult(f.Grant())
		if first, repeated := r.results[name]; repeated && first.Token == int64(f.Token()) {
			done = first.committed()
			return r.replay(), nil
		}
		h := r.head.rules(r.id, r.beat)
		replay, err := h.Release(f, now)
		if err != nil {
			return nil, err
		}
		if replay {
			done = runstore.Committed{LastSeq: h.LastSeq, Time: now, Replayed: true}
			return r.replay(), nil
		}
		if err := h.Guards(guards, now, r.version); err != nil {
			return nil, err
		}
		e := newEdit(r, now)
		if req.Writes.IsZero() {
			name = ""
		}
		err = e.apply(req.Writes, f.Token(), f.Owner(), false, name, result{Token: int64(f.Token())})
		e.endGrant(false)
		return e, err
	})
	if e != nil {
		done = e.done
	}
	return done, err
}

var errPurged = errors.New("bigtable: the run existed, and was purged while it was read")
