package sqlite

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

const insertRun = `INSERT INTO runs (id, purged, status, created, runnable, last_seq, version_floor, token, grant_id, grant_state,
	owner, reactor, strict, expires, preempted_from, preempt_reason, tail_seq, tail)
	VALUES (?, 1, 0, 0, NULL, 0, 0, 0, '', 0, x'', x'', 0, 0, x'', x'', 1, x'') RETURNING no`

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return write(ctx, s, "create run", spec.ID, spec.Check(), func(tx *tx) (runstore.Created, error) {
		return tx.create(spec)
	})
}

func (tx *tx) create(spec runstore.RunSpec) (created runstore.Created, err error) {
	r, err := tx.load(spec.ID)
	if err != nil {
		return created, err
	}
	if r != nil && !r.purged {
		if l := spec.Lease; l != nil && l.Grant != "" && l.Grant == r.Grant && r.State == rules.Current {
			created.New, created.Lease = true, r.Lease(l.TTL)
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
		if _, err := tx.c.one(tx.ctx, insertRun, blob(spec.ID)); err != nil {
			return created, err
		}
		if r, err = tx.load(spec.ID); err != nil {
			return created, err
		}
	}
	r.purged, r.Status, r.CreatedAt, r.RunnableAt = false, spec.Status, tx.now, spec.Runnable.Resolve(tx.now)
	save := tx.save
	if spec.Lease != nil {
		save = tx.saveGrant
		r.Head = r.Granted(withGrant(*spec.Lease), "", tx.now)
		created.Lease = r.Lease(spec.Lease.TTL)
	}
	tx.changed = true
	if err := save(r); err != nil {
		return created, err
	}
	if !spec.Writes.IsZero() {
		if _, err := tx.apply(r, spec.ID, spec.Writes, created.Lease.Fence()); err != nil {
			return created, err
		}
	}
	created.New = true
	created.Run, err = readRun(tx.ctx, tx.c, spec.ID)
	return created, err
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error) {
	return write(ctx, s, "acquire lease", req.Run, req.Check(), func(tx *tx) (runstore.Lease, error) {
		r, err := tx.find(req.Run)
		if err != nil {
			return runstore.Lease{}, err
		}
		if err := tx.loadFormer(r); err != nil {
			return runstore.Lease{}, err
		}
		replay, err := r.Acquire(req, tx.now)
		if err != nil || replay {
			return r.Lease(req.TTL), err
		}
		if err := r.Guards(runstore.GuardsOf(req.Guards...), tx.now, tx.versions(r.no)); err != nil {
			return runstore.Lease{}, err
		}
		r.Head, tx.changed = r.Granted(withGrant(req.LeaseSpec), req.Preempt, tx.now), true
		if err := tx.saveGrant(r); err != nil {
			return runstore.Lease{}, err
		}
		lease := r.Lease(req.TTL)
		if !req.Writes.IsZero() {
			_, err = tx.apply(r, req.Run, req.Writes, lease.Fence())
		}
		return lease, err
	})
}

const (
	selectFormer = `SELECT former FROM grants WHERE run = ?`
	putFormer    = `INSERT INTO grants (run, former) VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET former = excluded.former`
)

// loadFormer reads the run's former grants, for a request that may make a grant.
func (tx *tx) loadFormer(r *row) error {
	v, err := tx.c.one(tx.ctx, selectFormer, r.no)
	if err == nil && v != nil {
		r.Former = bytesOf(v[0])
	}
	return err
}

// saveGrant is save after a grant: it also stores the former grants. A run that is
// leased for the first time has none.
func (tx *tx) saveGrant(r *row) error {
	if len(r.Former) > 0 {
		if _, err := tx.c.exec(tx.ctx, putFormer, r.no, []byte(r.Former)); err != nil {
			return err
		}
	}
	return tx.save(r)
}

// renew is a heartbeat: it changes one column of one row, which is in no index.
const renew = `UPDATE runs SET expires = max(expires, ?) WHERE id = ? AND purged = 0` + fenced + ` RETURNING expires, reactor, strict`

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Lease, error) {
	f := req.Fence
	return write(ctx, s, "renew lease", f.Run(), req.Check(), func(tx *tx) (runstore.Lease, error) {
		v, err := tx.c.one(tx.ctx, renew, tx.now.Add(req.TTL).UnixMicro(), blob(f.Run()),
			int64(f.Token()), string(f.Grant()), blob(f.Owner()), tx.now.UnixMicro())
		if err != nil {
			return runstore.Lease{}, err
		}
		if v == nil {
			return runstore.Lease{}, tx.refused(f.Run(), f)
		}
		return runstore.Lease{
			Run: f.Run(), Owner: f.Owner(), Reactor: runstore.Reactor(bytesOf(v[1])), Token: f.Token(), Grant: f.Grant(),
			TTL: req.TTL, ExpiresAt: runstore.FromMicros(v[0].(int64)), Strict: v[2].(int64) != 0,
		}, nil
	})
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	f := req.Fence
	return write(ctx, s, "release lease", f.Run(), req.Check(), func(tx *tx) (runstore.Committed, error) {
		r, err := tx.find(f.Run())
		if err != nil {
			return runstore.Committed{}, err
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
		return tx.apply(r, f.Run(), w, f)
	})
}

func withGrant(spec runstore.LeaseSpec) runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return spec
}

const selectEpochs = `SELECT epoch, at, reason FROM epochs ORDER BY epoch`

// Epochs implements runstore.Epocher.
func (s *Store) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = s.read(ctx, "epochs", "", nil, func(c *conn) error {
		v, err := c.all(ctx, selectEpochs)
		for _, row := range v {
			epochs = append(epochs, runstore.EpochChange{
				Epoch: runstore.Epoch(row[0].(int64)), At: runstore.FromMicros(row[1].(int64)), Reason: text[string](row[2]),
			})
		}
		return err
	})
	return epochs, err
}

// RaiseEpoch implements runstore.Epocher.
func (s *Store) RaiseEpoch(ctx context.Context, reason string) (runstore.Epoch, error) {
	return write(ctx, s, "raise epoch", "", runstore.CheckReason(reason), func(tx *tx) (runstore.Epoch, error) {
		epoch, err := raise(tx.ctx, tx.c, reason, 0, tx.now)
		if err == nil {
			// The operations behind it in this transaction are of the new epoch.
			tx.changed, tx.epoch, tx.next = true, epoch, runstore.Position(epoch.Floor())+1
		}
		return epoch, err
	})
}
