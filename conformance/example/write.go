package boltstore

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// Commit implements adapter.Core.
func (c core) Commit(_ context.Context, batch runstore.Batch) (runstore.Committed, error) {
	return update(c, func(tx tx) (done runstore.Committed, err error) {
		r, err := tx.find(batch.Run())
		if err != nil {
			return done, err
		}
		name := rules.BatchResult(batch.ID)
		if first := r.first(name); first != nil {
			return first.Committed, nil
		}
		if err := r.Guards(batch.Guards(), tx.now, r.version); err != nil {
			return done, err
		}
		if done, err = tx.apply(r, batch.Writes, batch.Guards().Fence); err != nil {
			return done, err
		}
		if !batch.Purge {
			r.remember(name, rules.FirstResult{Committed: done})
		}
		return done, tx.save(r)
	})
}

// CreateRun implements adapter.Core.
func (c core) CreateRun(_ context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return update(c, func(tx tx) (created runstore.Created, err error) {
		r, err := tx.load(spec.ID)
		if err != nil {
			return created, err
		}
		if r != nil && !r.Purged {
			if spec.Lease != nil {
				if granted, ok := r.RepeatedGrant(*spec.Lease, r.first(rules.GrantResult(spec.Lease.Grant))); ok {
					created = runstore.Created{New: true, Lease: granted.Lease, Committed: granted.Committed, Former: granted.Former}
				}
			}
			created.Run = r.public()
			return created, nil
		}
		if r == nil {
			r = &run{}
		} else if spec.Lease != nil { // purged: its token, its versions and its grants' ids continue
			if err := r.NewGrant(spec.Lease.Grant); err != nil {
				return created, err
			}
		}
		r.Purged, r.Records, r.LastSeq = false, map[runstore.RecordKey]record{}, 0
		r.ID, r.Status, r.Unlisted, r.CreatedAt, r.RunnableAt = spec.ID, spec.Status, spec.Unlisted, tx.now, spec.Runnable.Resolve(tx.now)
		if spec.Lease != nil {
			granted, err := tx.grant(r, runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes})
			if err != nil {
				return created, err
			}
			created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
		} else if created.Committed, err = tx.apply(r, spec.Writes, runstore.Fence{}); err != nil {
			return created, err
		}
		created.New, created.Run = true, r.public()
		return created, tx.save(r)
	})
}

// AcquireLease implements adapter.Core.
func (c core) AcquireLease(_ context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return update(c, func(tx tx) (granted runstore.Granted, err error) {
		r, err := tx.find(req.Run)
		if err != nil {
			return granted, err
		}
		if granted, ok := r.RepeatedGrant(req.LeaseSpec, r.first(rules.GrantResult(req.Grant))); ok {
			return granted, nil
		}
		if _, err := r.Acquire(req, tx.now); err != nil {
			return granted, err
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), tx.now, r.version); err != nil {
			return granted, err
		}
		if granted, err = tx.grant(r, req); err != nil {
			return granted, err
		}
		return granted, tx.save(r)
	})
}

// grant makes a grant and applies the request's writes under it.
func (tx tx) grant(r *run, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	r.Head = r.Granted(req, tx.now)
	granted.Lease, granted.Former = r.Lease(req.TTL), r.Holder.Former
	if granted.Committed, err = tx.apply(r, req.Writes, granted.Fence()); err == nil && !req.Writes.IsZero() {
		r.remember(rules.GrantResult(req.Grant), rules.FirstResult{Committed: granted.Committed, Token: granted.Token, Former: granted.Former})
	}
	return granted, err
}

// RenewLease implements adapter.Core.
func (c core) RenewLease(_ context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return update(c, func(tx tx) (renewed runstore.Renewed, err error) {
		r, err := tx.find(req.Fence.Run())
		if err != nil {
			return renewed, err
		}
		name := rules.BatchResult(req.ID)
		if first := r.first(name); first != nil {
			return runstore.Renewed{Lease: r.RenewedBefore(req, first.Committed), Committed: first.Committed}, nil
		}
		if err := r.Renew(req, tx.now); err != nil {
			return renewed, err
		}
		r.Head = r.Renewed(req.TTL, tx.now)
		renewed.Lease = r.Lease(req.TTL)
		if !req.Writes.IsZero() {
			if renewed.Committed, err = tx.apply(r, req.Writes, req.Fence); err != nil {
				return renewed, err
			}
			r.remember(name, rules.FirstResult{Committed: renewed.Committed})
		}
		return renewed, tx.save(r)
	})
}

// ReleaseLease implements adapter.Core.
func (c core) ReleaseLease(_ context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return update(c, func(tx tx) (done runstore.Committed, err error) {
		f := req.Fence
		r, err := tx.find(f.Run())
		if err != nil {
			return done, err
		}
		name := rules.ReleaseResult(f.Grant())
		if first := r.first(name); first != nil && first.Token == f.Token() {
			return first.Committed, nil
		}
		replay, err := r.Release(f, tx.now)
		if err != nil {
			return done, err
		}
		if replay {
			return runstore.Committed{LastSeq: r.LastSeq, Time: tx.now, Replayed: true}, nil
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), tx.now, r.version); err != nil {
			return done, err
		}
		if done, err = tx.apply(r, req.Writes, f); err != nil {
			return done, err
		}
		r.Head = r.Ended(rules.Released)
		if !req.Writes.IsZero() {
			r.remember(name, rules.FirstResult{Committed: done, Token: f.Token()})
		}
		return done, tx.save(r)
	})
}

// version returns the version of a record, for rules.Head.Guards.
func (r *run) version(key runstore.RecordKey) (runstore.Version, error) {
	return r.Records[key].Version, nil
}

// first returns the remembered result of a request as its repeat receives it, or nil.
func (r *run) first(name string) *rules.FirstResult {
	for _, one := range slices.Backward(r.Results) { // the latest, should an id have been used again
		if name != "" && one.Name == name {
			one.Committed.Replayed = true
			return &one.FirstResult
		}
	}
	return nil
}

// remember keeps the result of a request that has an id, and forgets the oldest.
func (r *run) remember(name string, first rules.FirstResult) {
	if name == "" {
		return
	}
	r.Results = append(r.Results, result{name, first})
	r.Results = r.Results[max(0, len(r.Results)-runstore.RememberedBatches):]
}

// apply applies writes, whose guards hold. It is the only place where a run's journal and records
// change. The caller saves the run.
func (tx tx) apply(r *run, w runstore.Writes, f runstore.Fence) (done runstore.Committed, err error) {
	done.Time = tx.now
	if len(w.Events) > 0 {
		done.FirstSeq = r.LastSeq + 1
	}
	for _, e := range w.Events {
		r.LastSeq++
		if err := tx.appendEvent(r.ID, runstore.Event{
			Seq: r.LastSeq, Kind: e.Kind, Data: e.Data, Time: tx.now, Token: f.Token(), Owner: f.Owner(),
		}); err != nil {
			return done, err
		}
	}
	done.LastSeq = r.LastSeq
	for _, change := range w.Records {
		stamp := runstore.Stamp{Seq: rules.ExplainingSeq(w, change, done.FirstSeq, r.LastSeq), Time: tx.now, Token: f.Token()}
		done.Versions = append(done.Versions, r.change(change, stamp))
	}
	if !f.IsZero() && rules.IsProgress(w) {
		r.Holder.ProgressedAt = tx.now
	}
	if w.Status != nil {
		r.Status = *w.Status
	}
	if !w.Runnable.IsZero() {
		r.RunnableAt = w.Runnable.Resolve(tx.now)
	}
	if w.Release && !f.IsZero() {
		r.Head = r.Ended(rules.Released)
	} else if w.Release || w.Purge {
		r.Head = r.Ended(rules.Revoked)
	}
	if w.Purge {
		err = tx.purge(r)
	}
	return done, err
}

// change applies a change of a record and returns its version afterwards.
func (r *run) change(w runstore.RecordWrite, stamp runstore.Stamp) runstore.Version {
	rec, exists := r.Records[w.Key]
	if w.Delete {
		r.Floor = max(r.Floor, rec.Version)
		delete(r.Records, w.Key)
		return 0
	}
	if !exists { // a version is never used twice
		rec.Record = runstore.Record{Key: w.Key, Version: r.Floor, Created: stamp}
	}
	rec.Version++
	rec.Value, rec.Updated, rec.Places = w.Value, stamp, nil
	for _, p := range w.Index {
		rec.Places = append(rec.Places, place{p.Index, p.At.Resolve(stamp.Time)})
	}
	if r.Records == nil {
		r.Records = map[runstore.RecordKey]record{}
	}
	r.Records[w.Key] = rec
	return rec.Version
}

// appendEvent stores an event under the next position of the feed.
func (tx tx) appendEvent(id runstore.RunID, e runstore.Event) error {
	feed := tx.Bucket(bucketFeed)
	position, err := feed.NextSequence()
	if err != nil {
		return err
	}
	e.Position = runstore.Position(position)
	if err := put(feed, number(position), runstore.FeedEvent{Run: id, Event: e}); err != nil {
		return err
	}
	journal, err := tx.Bucket(bucketEvents).CreateBucketIfNotExists([]byte(id))
	if err != nil {
		return err
	}
	return journal.Put(number(uint64(e.Seq)), number(position))
}

// purge deletes what a run has, but its head.
func (tx tx) purge(r *run) error {
	for _, rec := range r.Records {
		r.Floor = max(r.Floor, rec.Version)
	}
	r.Purged, r.Records, r.Results = true, nil, nil
	journal := tx.Bucket(bucketEvents).Bucket([]byte(r.ID))
	if journal == nil {
		return nil
	}
	if err := journal.ForEach(func(_, position []byte) error { return tx.Bucket(bucketFeed).Delete(position) }); err != nil {
		return err
	}
	return tx.Bucket(bucketEvents).DeleteBucket([]byte(r.ID))
}

// number returns a key that sorts as the number does.
func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
