package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// CreateRun implements adapter.Core.
func (e *engine) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	w := newWrite(opCreate, spec.Writes)
	w.newStatus, w.runnable, w.unlisted, w.lease = &spec.Status, spec.Runnable, spec.Unlisted, spec.Lease
	r := &request{run: spec.ID, write: w, size: sizeOf(spec.Writes)}
	if w.lease != nil {
		r.storeGrantResult(w.lease.Grant, spec.Writes)
	}
	a, err := e.perform(ctx, r)
	if err != nil {
		return created, err
	}
	if a.status == statusRefused && a.hadGrants && w.lease != nil {
		if err := a.head.NewGrant(w.lease.Grant); err != nil {
			return created, err
		}
	}
	created.New = a.status != statusRefused
	created.Run = a.head.Run
	created.Run.Summary = a.summary
	if created.New && w.lease != nil {
		granted := a.granted(*w.lease)
		created.Lease, created.Committed, created.Former = granted.Lease, granted.Committed, granted.Former
	} else if created.New {
		created.Committed = a.committed()
	}
	if a.status == statusApplied && a.summary.Version == 0 { // it is looked up only after a lost reply
		created.Run.Summary = summaryOf(spec.Writes, a, created.Lease.Token)
	}
	return created, nil
}

// summaryOf returns the summary record of a run that was just created under a token.
func summaryOf(w runstore.Writes, a *writeResult, token runstore.Token) runstore.Record {
	for i, r := range w.Records {
		if r.Key == runstore.SummaryKey && !r.Delete && i < len(a.versions) {
			stamp := runstore.Stamp{Seq: rules.ExplainingSeq(w, r, a.first, a.last), Time: a.now, Token: token}
			return runstore.Record{Key: r.Key, Version: a.versions[i], Value: data(append([]byte(nil), r.Value...)), Created: stamp, Updated: stamp}
		}
	}
	return runstore.Record{}
}

// storeGrantResult makes the server store the result of a grant with writes.
func (r *request) storeGrantResult(id runstore.GrantID, w runstore.Writes) {
	if !w.IsZero() {
		r.storeResult(rules.GrantResult(id))
	}
}

// AcquireLease implements adapter.Core.
func (e *engine) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	w := newWrite(opAcquire, req.Writes)
	w.lease, w.preempt = &req.LeaseSpec, req.Preempt
	guards := runstore.GuardsOf(req.Guards...)
	w.guard(guards)
	r := &request{run: req.Run, write: w, size: sizeOf(req.Writes), order: orderAcquire}
	r.storeGrantResult(req.Grant, req.Writes)
	if req.Preempt == "" && len(req.Guards) == 0 && req.Writes.IsZero() {
		r.acquire = &req
	}
	a, err := e.perform(ctx, r)
	if err != nil {
		return granted, err
	}
	if a.status == statusRefused {
		if _, err := a.head.Acquire(req, a.now); err != nil {
			return granted, err
		}
	}
	if a.status != statusApplied && a.status != statusAppliedBefore {
		return granted, a.explain(guards)
	}
	return a.granted(req.LeaseSpec), nil
}

// granted returns the grant that a write made, now or in an earlier attempt. The grant may have
// ended since, if the write is a repeat or its outcome had to be settled.
func (a *writeResult) granted(spec runstore.LeaseSpec) runstore.Granted {
	token := a.resultToken
	if token == 0 {
		token = a.head.Token
	}
	g := runstore.Granted{Committed: a.committed(), Former: a.head.Holder.Former}
	if a.resultToken != 0 {
		g.Former = a.resultFormer
	} else if a.status == statusAppliedBefore { // the grant is current and its request had no writes, so its result is not stored
		g.Committed = runstore.Committed{LastSeq: a.head.LastSeq, Time: a.head.Holder.GrantedAt, Replayed: true}
	}
	if g.Ended = a.head.State != rules.Current || a.head.Grant != spec.Grant || a.head.Token != token; g.Ended {
		g.Lease = rules.FormerLease(a.head.ID, spec, token, g.Committed)
	} else {
		g.Lease = a.head.Lease(spec.TTL)
	}
	return g
}

// RenewLease implements adapter.Core. A renewal without writes is the dedicated heartbeat
// statement; a renewal with writes is a call of tapestore.write.
func (e *engine) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	f := req.Fence
	r := &request{run: f.Run(), fence: f, ttl: req.TTL}
	g := runstore.Guards{Fence: f}
	if !req.Writes.IsZero() {
		w := newWrite(opRenew, req.Writes)
		w.renewal = req.TTL
		w.guard(g)
		r = &request{run: f.Run(), write: w, size: sizeOf(req.Writes)}
		r.storeResult(rules.BatchResult(req.ID))
	}
	a, err := e.perform(ctx, r)
	if err != nil {
		return renewed, err
	}
	if a.status == statusRefused {
		if err := a.head.Renew(req, a.now); err != nil {
			return renewed, err
		}
	}
	if a.status != statusApplied && a.status != statusAppliedBefore {
		return renewed, a.explain(g)
	}
	renewed.Lease = a.head.Lease(req.TTL)
	if r.write != nil {
		renewed.Committed = a.committed()
		renewed.Lease = a.head.RenewedBefore(req, renewed.Committed)
	}
	return renewed, nil
}

// ReleaseLease implements adapter.Core.
func (e *engine) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f := req.Fence
	w := newWrite(opRelease, req.Writes)
	g := runstore.GuardsOf(req.Guards...)
	g.Fence = f
	w.guard(g)
	w.release = true
	r := &request{run: f.Run(), write: w, size: sizeOf(req.Writes), order: orderEnd}
	r.releases = len(req.Guards) == 0 && req.Writes.IsZero()
	if !req.Writes.IsZero() {
		r.storeResult(rules.ReleaseResult(f.Grant()))
	}
	a, err := e.perform(ctx, r)
	if err != nil {
		return done, err
	}
	if a.status != statusApplied && a.status != statusAppliedBefore {
		return done, a.explain(g)
	}
	return a.committed(), nil
}

// Epochs implements runstore.EpochManager.
func (e *engine) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = e.read(ctx, func(q *query) error {
		epochs = nil
		var epoch int64
		var at nullTime
		var reason []byte
		return q.each(sqlEpochList, nil, []any{&epoch, &at, &reason}, func() error {
			epochs = append(epochs, runstore.EpochChange{Epoch: runstore.Epoch(epoch), At: timeOf(at), Reason: string(reason)})
			return nil
		})
	})
	return epochs, err
}

// RaiseEpoch implements runstore.EpochManager.
func (e *engine) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
	defer func() {
		if runstore.OutcomeOf(err) != runstore.NotApplied {
			e.notifier.raised()
		}
	}()
	var conn *pgxpool.Conn
	var at incarnation
	var done func()
	err = e.retry(ctx, func() error { // a connection may have died while it was idle
		if conn, done, err = e.connect(ctx, forCommit); err != nil {
			return err
		}
		if at, err = incarnationOf(ctx, conn.Conn()); err != nil {
			done()
		}
		return err
	}, nil)
	if err != nil {
		return 0, err
	}
	err = acknowledged(conn.Conn(), func() (err error) {
		epoch, err = e.raiseEpoch(ctx, conn.Conn(), reason, at, false)
		return err
	})
	done() // rejected needs a connection
	if err != nil {
		if classify(err) == classAmbiguous {
			return 0, outcome.Unknown(outcome.Cause(ctx, err))
		}
		return 0, e.rejected(ctx, err)
	}
	return epoch, runstore.CheckEpoch(epoch)
}

var errStandby = errors.New("postgres: the server is a standby (in recovery), which takes no writes; see target_session_attrs")
