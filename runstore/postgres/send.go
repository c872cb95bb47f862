package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
)

// appendEvents appends events under a fence. The fence is checked on the row that
// the UPDATE locks; where it waited for another transaction, on what that one left.
//
// $1 run, $2 token, $3 grant, $4 owner, $5 how many, $6 nonces, $7 kinds, $8 data,
// $9 ordinal.
const appendEvents = `WITH r AS (
	UPDATE tapestore.runs SET last_seq = last_seq + $5::bigint
	WHERE id = $1::bytea` + fenced + ` AND (voided IS NULL OR NOT voided && $6::bigint[])
	RETURNING no, last_seq, clock_timestamp() AS now
), e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
	SELECT r.no, r.last_seq - $5::bigint + e.i,
		s.position_base + ((pg_current_xact_id()::text::bigint - s.xid_base) << 14) + $9::bigint + e.i - 1,
		e.nonce, $2::bigint, r.now, e.kind, $4::bytea, e.data
	FROM r, tapestore.store s, unnest($6::bigint[], $7::bytea[], $8::bytea[]) WITH ORDINALITY AS e (nonce, kind, data, i)
)
SELECT 1::smallint, r.now, r.last_seq - $5::bigint + 1, r.last_seq` + noHead + ` FROM r
UNION ALL SELECT * FROM tapestore.refused($1::bytea) WHERE NOT EXISTS (SELECT FROM r)`

// fenced is the fence as a condition on a row of runs.
const fenced = ` AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (NOT is_strict OR expires > clock_timestamp())`

const noHead = `, NULL::bigint[], NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::bigint, NULL::bigint, NULL::timestamptz,
	NULL::smallint, NULL::boolean, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bigint, NULL::bigint,
	NULL::bigint, NULL::bytea, NULL::bigint, NULL::timestamptz, NULL::bigint, NULL::timestamptz`

// renew is a heartbeat: it changes one column of one row, which is in no index.
const renew = `WITH u AS (
	UPDATE tapestore.runs AS r SET expires = greatest(expires, clock_timestamp() + $5::bigint * interval '1 microsecond')
	WHERE id = $1::bytea` + fenced + ` RETURNING r AS run
)
SELECT a.* FROM u, tapestore.tell(1, clock_timestamp(), NULL, NULL, NULL, u.run, 0) a
UNION ALL SELECT * FROM tapestore.refused($1::bytea) WHERE NOT EXISTS (SELECT FROM u)`

// unit is a statement with the requests that it serves.
type unit struct {
	sql      string
	args     []any
	requests []*request
}

// units makes the statements of a group, and returns the contenders for the lease
// that need none of their own unless it turns out so.
func units(group []*request) (all []*unit, contenders []*request) {
	var ordinal int64
	var asked bool
	for i := 0; i < len(group); i++ {
		r := group[i]
		u := &unit{requests: []*request{r}}
		switch {
		case r.write != nil:
			if r.acquire != nil {
				if asked {
					contenders = append(contenders, r)
					continue
				}
				asked = true
			}
			u.sql, u.args = callWrite, r.write.args(r.nonce, ordinal)
		case r.ttl > 0:
			f := r.fence
			u.sql, u.args = renew, []any{[]byte(f.Run()), int64(f.Token()), []byte(f.Grant()), data([]byte(f.Owner())), r.ttl.Microseconds()}
		default:
			for i+1 < len(group) && group[i+1].fence == r.fence && group[i+1].write == nil && group[i+1].ttl == 0 {
				i++
				u.requests = append(u.requests, group[i])
			}
			u.sql, u.args = appendEvents, appendArgs(u.requests, ordinal)
		}
		for _, r := range u.requests {
			ordinal += int64(r.appends())
		}
		all = append(all, u)
	}
	return all, contenders
}

func appendArgs(requests []*request, ordinal int64) []any {
	n := 0
	for _, r := range requests {
		n += len(r.events)
	}
	nonces, kinds, payloads := make([]*int64, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
	for _, r := range requests {
		for i, e := range r.events {
			var nonce *int64
			if i == 0 {
				nonce = &r.nonce
			}
			nonces, kinds, payloads = append(nonces, nonce), append(kinds, []byte(e.Kind)), append(payloads, data(e.Data))
		}
	}
	f := requests[0].fence
	return []any{
		[]byte(f.Run()), int64(f.Token()), []byte(f.Grant()), data([]byte(f.Owner())), int64(n), nonces, kinds, payloads, ordinal,
	}
}

// sendGroup sends the requests of a group in one round trip, which is one
// transaction, and fills in their answers: all have one, or all have the error.
func (s *Store) sendGroup(ctx context.Context, group []*request) {
	for len(group) > 0 {
		all, contenders := units(group)
		for _, r := range group {
			r.sent = time.Now()
		}
		answers, err := s.ask(ctx, all)
		for i, u := range all {
			u.share(answers, i, err)
		}
		group = answerContenders(all, contenders, err)
	}
}

// share gives a statement's answer to the requests that it served.
func (u *unit) share(answers []answer, i int, err error) {
	if err != nil {
		for _, r := range u.requests {
			r.err = err
		}
		return
	}
	a := answers[i]
	next := a.first
	for _, r := range u.requests {
		r.answer, r.err = a, nil
		if r.write == nil && r.ttl == 0 && a.verdict == applied {
			r.answer.first, r.answer.last = next, next+runstore.Seq(len(r.events))-1
			next = r.answer.last + 1
		}
	}
}

// answerContenders judges the others who wanted the lease by what the first of
// them was told, and returns those of whom that says nothing.
func answerContenders(all []*unit, contenders []*request, err error) (rest []*request) {
	if len(contenders) == 0 {
		return nil
	}
	var first *request
	for _, u := range all {
		if u.requests[0].acquire != nil {
			first = u.requests[0]
		}
	}
	for _, r := range contenders {
		if r.err = err; err != nil {
			continue
		}
		r.answer = first.answer
		r.answer.verdict = refused
		switch replay, err := first.answer.head.Acquire(*r.acquire, first.answer.now); {
		case first.answer.verdict == noSuchRun:
			r.answer.verdict = noSuchRun
		case err != nil: // held, or the contender's own grant was ended
		case replay:
			r.answer.verdict = appliedBefore
		default:
			rest = append(rest, r)
		}
	}
	return rest
}

// ask runs statements in one round trip and one transaction.
func (s *Store) ask(ctx context.Context, all []*unit) ([]answer, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, notSent{err}
	}
	defer s.giveBack(ctx, conn)
	if len(all) == 1 {
		u, answers := all[0], make([]answer, 1)
		rows, err := conn.Query(ctx, s.sql(u.sql), u.args...)
		if err != nil {
			return nil, err
		}
		err = answers[0].scan(rows, u.requests[0].run)
		rows.Close()
		return answers, errors.Join(rows.Err(), err)
	}
	return s.queue(ctx, conn, all)
}

// queue runs statements one after another in one round trip.
func (s *Store) queue(ctx context.Context, conn interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}, all []*unit) ([]answer, error) {
	answers := make([]answer, len(all))
	var batch pgx.Batch
	for _, u := range all {
		batch.Queue(s.sql(u.sql), u.args...)
	}
	results := conn.SendBatch(ctx, &batch)
	for i, u := range all {
		rows, err := results.Query()
		if err == nil {
			err = answers[i].scan(rows, u.requests[0].run)
			rows.Close()
		}
		if err != nil {
			return nil, errors.Join(err, results.Close())
		}
	}
	return answers, results.Close() // the commit's own error is told here
}

// giveBack returns a connection to the pool. One whose statement was cut short is
// not used again: the request to cancel may still be under way to it.
func (s *Store) giveBack(ctx context.Context, conn *pgxpool.Conn) {
	if ctx.Err() != nil {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		_ = conn.Conn().Close(bound) // it is given up
	}
	conn.Release()
}
