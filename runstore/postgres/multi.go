package postgres

import (
	"context"
	"crypto/md5"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tapestore/tapestore/runstore"
)

const lockRuns = `SELECT tapestore.lock_runs($1::bytea[])`

// CommitMulti implements runstore.MultiCommitter: one transaction, and one round
// trip.
func (s *Store) CommitMulti(ctx context.Context, batches []runstore.Batch) (done []runstore.Committed, err error) {
	err = s.op(ctx, "commit", "", runstore.CheckMulti(batches), func() error {
		requests := make([]*request, len(batches))
		for i, b := range batches {
			r := commitRequest(b)
			if r.write == nil { // every batch through the function, which says which events are its own
				r.write = newWrite(opCommit, b.Run(), b.Writes)
				r.write.guard(b.Guards())
				r.events = nil
			}
			r.write.oneInstant = true
			requests[i] = r
		}
		done, err = s.performMulti(ctx, batches, requests)
		return err
	})
	return done, err
}

// performMulti is perform for several batches: all were applied if the first was.
func (s *Store) performMulti(ctx context.Context, batches []runstore.Batch, requests []*request) ([]runstore.Committed, error) {
	for t := s.tries(); ; {
		for _, r := range requests {
			r.nonce = newNonce()
		}
		done, err := s.commitAll(ctx, batches, requests)
		if err == nil {
			s.notifier.committed()
			return done, nil
		}
		if isKind(err) {
			return nil, err
		}
		switch fateOf(err) {
		case closed:
			return nil, runstore.ErrClosed
		case failed:
			return nil, unavailable(cause(ctx, err))
		case lost:
			if ctx.Err() != nil {
				return nil, unknown(cause(ctx, err))
			}
			done, unsettled := s.settleAll(ctx, requests, t)
			if unsettled != nil {
				return nil, unknown(errors.Join(err, unsettled))
			}
			if done != nil {
				s.notifier.committed()
				return done, nil
			}
		}
		if !t.more(ctx) {
			return nil, unavailable(cause(ctx, err))
		}
	}
}

// settleAll settles every batch. The first that was not applied shows that none was,
// and its nonce keeps a late copy of the whole from being applied.
func (s *Store) settleAll(ctx context.Context, requests []*request, t *tries) ([]runstore.Committed, error) {
	done := make([]runstore.Committed, len(requests))
	for i, r := range requests {
		a, err := s.settle(ctx, r, t)
		if err != nil || a == nil {
			return nil, err
		}
		done[i] = a.committed()
	}
	return done, nil
}

// codeRefused is raised by tapestore.demand.
const codeRefused = "TS001"

// commitAll sends all batches in one round trip, which is one transaction.
func (s *Store) commitAll(ctx context.Context, batches []runstore.Batch, requests []*request) ([]runstore.Committed, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, notSent{err}
	}
	defer s.giveBack(ctx, conn)
	defer s.bounded(conn)()
	var batch pgx.Batch
	ids := make([][]byte, len(requests))
	for i, r := range requests {
		ids[i] = []byte(r.run)
		r.sent = time.Now()
	}
	batch.Queue(s.sql(lockRuns), ids)
	for i, r := range requests {
		batch.Queue(s.sql(demandWrite), r.write.args(r.nonce, int64(i)<<10)...)
	}
	results := conn.SendBatch(ctx, &batch)
	_, err = results.Exec()
	done := make([]runstore.Committed, len(requests))
	for i, r := range requests {
		if err != nil {
			break
		}
		u := &unit{requests: []*request{r}}
		u.read = u.readAnswer
		var a answer
		var rows pgx.Rows
		if rows, err = results.Query(); err == nil {
			err = one(rows, u, &a)
			rows.Close()
		}
		var server *pgconn.PgError
		if errors.As(err, &server) && server.Code == codeRefused {
			_ = results.Close() // it has the same error
			if err := a.refused([]byte(server.Detail), r.run); err != nil {
				return nil, err
			}
			// The detail, which a server logs, has a hash of the grant's id.
			f := batches[i].Guards().Fence
			if hash := md5.Sum([]byte(f.Grant())); string(hash[:]) == string(a.head.Grant) {
				a.head.Grant = f.Grant()
			}
			return nil, a.explain(batches[i].Guards())
		}
		done[i] = a.committed()
	}
	return done, errors.Join(err, results.Close())
}
