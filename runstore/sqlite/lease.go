package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements adapter.Core.
func (e *engine) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return write(ctx, e, func(tx *tx) (runstore.Created, error) { return tx.create(spec) })
}

func (tx *tx) create(spec runstore.RunSpec) (created runstore.Created, err error) {
	r, err := tx.load(spec.ID)
	if err != nil {
		return created, err
	}
	if r != nil && !r.purged {
		if spec.Lease != nil {
			granted, repeated, err := tx.repeatedGrant(r, *spec.Lease)
			if err != nil {
				return created, err
			}
			created = runstore.Created{New: repeated, Lease: granted.Lease, Committed: granted.Committed, Former: granted.Former}
		}
		created.Run, err = readRun(tx.ctx, tx.c, spec.ID)
		return created, err
	}
	if r != nil && spec.Lease != nil { // it was purged
		if err := tx.loadFormer(r); err != nil {
			return created, err
		}
		if err := r.NewGrant(spec.Lease.Grant); err != nil {
			return created, err
		}
	}
	if r == nil {
		if _, err := tx.c.exec(tx.ctx, sqlRunInsert, blob(spec.ID)); err != nil {
			return created, err
		}
		if r, err = tx.load(spec.ID); err != nil {
			return created, err
		}
	}
	r.purged, r.Status, r.Unlisted = false, spec.Status, spec.Unlisted
	r.CreatedAt, r.RunnableAt = tx.now, spec.Runnable.Resolve(tx.now)
	if spec.Lease != nil {
		granted, err := tx.grant(r, runstore.AcquireRequest{Run: spec.ID, LeaseSpec: *spec.Lease, Writes: spec.Writes})
		if err != nil {
			return created, err
		}
		created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
	} else if created.Committed, err = tx.saveWith(r, spec.ID, spec.Writes, runstore.Fence{}); err != nil {
		return created, err
	}
	created.New = true
	created.Run, err = readRun(tx.ctx, tx.c, spec.ID)
	return created, err
}

// AcquireLease implements adapter.Core.
func (e *engine) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return write(ctx, e, func(tx *tx) (runstore.Granted, error) {
		r, err := tx.find(req.Run)
		if err != nil {
			return runstore.Granted{}, err
		}
		if granted, repeated, err := tx.repeatedGrant(r, req.LeaseSpec); err != nil || repeated {
			return granted, err
		}
		if err := tx.loadFormer(r); err != nil {
			return runstore.Granted{}, err
		}
		if _, err := r.Acquire(req, tx.now); err != nil {
			return runstore.Granted{}, err
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), tx.now, tx.versions(r.no)); err != nil {
			return runstore.Granted{}, err
		}
		return tx.grant(r, req)
	})
}

// grant makes a grant, applies the request's writes under it, and remembers their result.
func (tx *tx) grant(r *row, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	r.Head = r.Granted(req, tx.now)
	granted.Lease, granted.Former = r.Lease(req.TTL), r.Holder.Former
	if err := tx.saveFormer(r); err != nil {
		return granted, err
	}
	if granted.Committed, err = tx.saveWith(r, req.Run, req.Writes, granted.Fence()); err != nil || req.Writes.IsZero() {
		return granted, err
	}
	return granted, tx.remember(r.no, rules.GrantResult(req.Grant),
		&storedResult{Committed: granted.Committed, Token: granted.Token, Former: granted.Former})
}

// saveWith writes a run's row back and applies the writes that belong to the change.
func (tx *tx) saveWith(r *row, id runstore.RunID, w runstore.Writes, f runstore.Fence) (runstore.Committed, error) {
	tx.changed = true
	if err := tx.save(r); err != nil || w.IsZero() {
		return runstore.Committed{LastSeq: r.LastSeq, Time: tx.now}, err
	}
	return tx.apply(r, id, w, f, "")
}

// repeatedGrant returns the result of a request that was granted before. repeated is true if the
// grant is current or its result is remembered.
func (tx *tx) repeatedGrant(r *row, spec runstore.LeaseSpec) (granted runstore.Granted, repeated bool, err error) {
	stored, err := tx.replay(r.ID, rules.GrantResult(spec.Grant))
	if err != nil {
		return granted, false, err
	}
	var first *rules.FirstResult
	if stored != nil {
		first = &rules.FirstResult{Committed: stored.Committed, Token: stored.Token, Former: stored.Former}
	}
	granted, repeated = r.RepeatedGrant(spec, first)
	return granted, repeated, nil
}

// loadFormer reads the run's former grants and their terms, which a request that may make a grant needs.
func (tx *tx) loadFormer(r *row) error {
	v, err := tx.c.one(tx.ctx, sqlGrantsRead, r.no)
	if err == nil && v != nil {
		r.Former, r.Terms = bytesOf(v[0]), bytesOf(v[1])
	}
	return err
}

// saveFormer stores the run's former grants and their terms after a grant. A run that is leased for the first time
// has none.
func (tx *tx) saveFormer(r *row) error {
	if len(r.Former) == 0 {
		return nil
	}
	_, err := tx.c.exec(tx.ctx, sqlGrantsPut, r.no, []byte(r.Former), []byte(r.Terms))
	return err
}

// RenewLease implements adapter.Core.
func (e *engine) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return write(ctx, e, func(tx *tx) (runstore.Renewed, error) {
		if !req.Writes.IsZero() {
			return tx.renewWith(req)
		}
		lease, err := tx.renew(req)
		return runstore.Renewed{Lease: lease}, err
	})
}

// renew extends the lease of a request if its fence holds.
func (tx *tx) renew(req runstore.RenewRequest) (runstore.Lease, error) {
	f, now := req.Fence, tx.now.UnixMicro()
	v, err := tx.c.one(tx.ctx, sqlLeaseRenew, tx.now.Add(req.TTL).UnixMicro(), req.TTL.Microseconds(), now, blob(f.Run()),
		int64(f.Token()), string(f.Grant()), blob(f.Owner()), now, now)
	if err != nil {
		return runstore.Lease{}, err
	}
	if v == nil {
		return runstore.Lease{}, tx.refused(f.Run(), func(r *row) error { return r.Renew(req, tx.now) })
	}
	tx.renewed = true
	return runstore.Lease{
		Run: f.Run(), Owner: f.Owner(), Reactor: runstore.Reactor(bytesOf(v[1])), Token: f.Token(), Grant: f.Grant(),
		TTL: req.TTL, ExpiresAt: runstore.FromMicros(v[0].(int64)), Strict: v[2].(int64) != 0,
	}, nil
}

// renewWith renews a lease and applies the writes of the request.
func (tx *tx) renewWith(req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	r, err := tx.find(req.Fence.Run())
	if err != nil {
		return renewed, err
	}
	name := rules.BatchResult(req.ID)
	if first, err := tx.replay(r.ID, name); err != nil || first != nil {
		committed := first.committed()
		return runstore.Renewed{Lease: r.RenewedBefore(req, committed), Committed: committed}, err
	}
	if err := r.Renew(req, tx.now); err != nil {
		return renewed, err
	}
	// The writes come first, because they are the progress that the statement of the renewal
	// requires.
	if renewed.Committed, err = tx.apply(r, r.ID, req.Writes, req.Fence, ""); err != nil {
		return renewed, err
	}
	if renewed.Lease, err = tx.renew(req); err != nil {
		return renewed, fmt.Errorf("renew after the writes: %v", err) // no refusal: the transaction must go
	}
	return renewed, tx.remember(r.no, name, &storedResult{Committed: renewed.Committed})
}

// ReleaseLease implements adapter.Core.
func (e *engine) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return write(ctx, e, func(tx *tx) (runstore.Committed, error) {
		f := req.Fence
		r, err := tx.find(f.Run())
		if err != nil {
			return runstore.Committed{}, err
		}
		name := rules.ReleaseResult(f.Grant())
		if first, err := tx.replay(f.Run(), name); err != nil || first != nil && first.Token == f.Token() {
			return first.committed(), err
		}
		replay, err := r.Release(f, tx.now)
		if err != nil {
			return runstore.Committed{}, err
		}
		if replay {
			return runstore.Committed{LastSeq: r.LastSeq, Time: tx.now, Replayed: true}, nil
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), tx.now, tx.versions(r.no)); err != nil {
			return runstore.Committed{}, err
		}
		w := req.Writes
		w.Release = true
		done, err := tx.apply(r, f.Run(), w, f, "")
		if err != nil || req.Writes.IsZero() {
			return done, err
		}
		return done, tx.remember(r.no, name, &storedResult{Committed: done, Token: f.Token()})
	})
}

// Epochs implements runstore.EpochManager.
func (e *engine) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = e.read(ctx, func(c *conn) error {
		return c.query(ctx, sqlEpochList, func(row []driver.Value) error {
			epochs = append(epochs, runstore.EpochChange{
				Epoch: runstore.Epoch(row[0].(int64)), At: runstore.FromMicros(row[1].(int64)), Reason: text[string](row[2]),
			})
			return nil
		})
	})
	return epochs, err
}

// RaiseEpoch implements runstore.EpochManager.
func (e *engine) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	if e.opts.ReadOnly {
		return 0, errReadOnly
	}
	var epoch runstore.Epoch
	err := e.writer.doSynced(ctx, func(tx *tx) (err error) {
		epoch, err = raise(tx.ctx, tx.c, reason, progress{}, tx.now)
		if err == nil {
			// Later operations of this transaction are in the new epoch.
			tx.changed, tx.epoch, tx.next = true, epoch, runstore.Position(epoch.Floor())+1
		}
		return err
	})
	return epoch, err
}
