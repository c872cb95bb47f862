package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/outcome"
	"github.com/tapestore/tapestore/runstore/rules"
)

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	err = s.op(ctx, "create run", spec.ID, spec.Check(), func() error {
		w := newWrite(opCreate, spec.ID, spec.Writes)
		w.newStatus, w.runnable = &spec.Status, spec.Runnable
		if spec.Lease != nil {
			w.lease = withGrant(*spec.Lease)
		}
		r := &request{run: spec.ID, write: w, size: sizeOf(spec.Writes)}
		a, err := s.perform(ctx, r)
		if err != nil {
			return err
		}
		if a.verdict == refused && a.hadGrants && w.lease != nil {
			if err := a.head.NewGrant(w.lease.Grant); err != nil {
				return err
			}
		}
		created.New = a.verdict != refused
		created.Run = a.head.Run
		created.Run.Summary = a.summary
		if created.New && w.lease != nil {
			created.Lease = granted(a, *w.lease)
		}
		if a.verdict == applied && a.summary.Version == 0 { // not looked up, as after a lost reply
			created.Run.Summary = summaryOf(spec.Writes, a)
		}
		return nil
	})
	return created, err
}

// summaryOf returns the summary record of a run that was just created.
func summaryOf(w runstore.Writes, a *answer) runstore.Record {
	for i, r := range w.Records {
		if r.Key == runstore.SummaryKey && !r.Delete && i < len(a.versions) {
			stamp := runstore.Stamp{Seq: rules.Seq(w, r, a.first, a.last), Time: a.now}
			return runstore.Record{Key: r.Key, Version: a.versions[i], Value: data(append([]byte(nil), r.Value...)), Created: stamp, Updated: stamp}
		}
	}
	return runstore.Record{}
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (lease runstore.Lease, err error) {
	err = s.op(ctx, "acquire lease", req.Run, req.Check(), func() error {
		req := req
		req.LeaseSpec = *withGrant(req.LeaseSpec)
		w := newWrite(opAcquire, req.Run, req.Writes)
		w.lease, w.preempt = &req.LeaseSpec, req.Preempt
		guards := runstore.GuardsOf(req.Guards...)
		w.guard(guards)
		r := &request{run: req.Run, write: w, size: sizeOf(req.Writes), order: takes}
		if req.Preempt == "" && len(req.Guards) == 0 && req.Writes.IsZero() {
			r.acquire = &req
		}
		a, err := s.perform(ctx, r)
		if err != nil {
			return err
		}
		if a.verdict == refused {
			if _, err := a.head.Acquire(req, a.now); err != nil {
				return err
			}
		}
		if a.verdict != applied && a.verdict != appliedBefore {
			return a.explain(guards)
		}
		lease = granted(a, req.LeaseSpec)
		return nil
	})
	return lease, err
}

// granted returns the lease that a write granted. It may have been lost to another
// since, if it took time to find out that it was granted.
func granted(a *answer, spec runstore.LeaseSpec) runstore.Lease {
	return runstore.Lease{
		Run: a.head.ID, Owner: spec.Owner, Reactor: spec.Reactor, Token: a.head.Token, Grant: spec.Grant,
		TTL: spec.TTL, ExpiresAt: a.head.ExpiresAt, Strict: spec.Strict,
	}
}

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (lease runstore.Lease, err error) {
	f := req.Fence
	err = s.op(ctx, "renew lease", f.Run(), req.Check(), func() error {
		a, err := s.perform(ctx, &request{run: f.Run(), fence: f, ttl: req.TTL})
		if err != nil {
			return err
		}
		if a.verdict != applied {
			return a.explain(runstore.Guards{Fence: f})
		}
		lease = a.head.Lease(req.TTL)
		return nil
	})
	return lease, err
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	f := req.Fence
	err = s.op(ctx, "release lease", f.Run(), req.Check(), func() error {
		w := newWrite(opRelease, f.Run(), req.Writes)
		g := runstore.GuardsOf(req.Guards...)
		g.Fence = f
		w.guard(g)
		w.release = true
		a, err := s.perform(ctx, &request{run: f.Run(), write: w, size: sizeOf(req.Writes), order: ends})
		if err != nil {
			return err
		}
		if a.verdict != applied && a.verdict != appliedBefore {
			return a.explain(g)
		}
		done = a.committed()
		return nil
	})
	return done, err
}

func withGrant(spec runstore.LeaseSpec) *runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return &spec
}

const (
	selectEpochs = `SELECT epoch, at, reason FROM tapestore.epochs ORDER BY epoch`
	raiseEpoch   = `SELECT tapestore.raise_epoch($1::bytea, $2::text, $3::bigint, $4::boolean)`
)

// Epochs implements runstore.Epocher.
func (s *Store) Epochs(ctx context.Context) (epochs []runstore.EpochChange, err error) {
	err = s.read(ctx, "epochs", "", nil, func(q *query) error {
		epochs = nil
		var epoch int64
		var at nullTime
		var reason []byte
		return q.each(selectEpochs, nil, []any{&epoch, &at, &reason}, func() error {
			epochs = append(epochs, runstore.EpochChange{Epoch: runstore.Epoch(epoch), At: timeOf(at), Reason: string(reason)})
			return nil
		})
	})
	return epochs, err
}

// RaiseEpoch implements runstore.Epocher.
func (s *Store) RaiseEpoch(ctx context.Context, reason string) (epoch runstore.Epoch, err error) {
	err = s.op(ctx, "raise epoch", "", runstore.CheckReason(reason), func() error {
		var conn *pgxpool.Conn
		var at incarnation
		var done func()
		for t := s.tries(); ; { // a connection may have died while it was idle
			if conn, done, err = s.connect(ctx, toCommit); err == nil {
				if at, err = incarnationOf(ctx, conn.Conn()); err == nil {
					break
				}
				done()
			}
			if f := fateOf(err); f == closed {
				return runstore.ErrClosed
			} else if f == failed || ctx.Err() != nil || !t.More(ctx) {
				return outcome.Unavailable(outcome.Cause(ctx, err))
			}
		}
		defer done()
		err = acknowledged(conn.Conn(), func() error {
			return conn.QueryRow(ctx, s.sql(raiseEpoch), []byte(reason), at.cluster, at.timeline, false).Scan(&epoch)
		})
		if err != nil {
			epoch = 0
			if fateOf(err) == lost {
				return outcome.Unknown(outcome.Cause(ctx, err))
			}
			return s.rejected(ctx, err)
		}
		return runstore.CheckEpoch(epoch)
	})
	return epoch, err
}

var errStandby = errors.New("postgres: the server is a standby (in recovery), which takes no writes; see target_session_attrs")
