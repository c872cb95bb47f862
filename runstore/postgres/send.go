package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
)

// appendOne appends an event under a fence, appendMany several. The fence is
// checked on the row that the UPDATE locks; where it waited for another
// transaction, on what that one left.
//
// The one row that they return is that of the UPDATE, or, where the fence did not
// hold, why. To add only that to the plan of a hand-written statement is what makes
// them fast.
//
// $1 run, $2 token, $3 grant, $4 owner, $5 position of transaction 0, $6 nonce,
// $7 kind, $8 data; $9 how many.
const (
	appendOne = `WITH r AS (
	UPDATE tapestore.runs SET last_seq = last_seq + 1, last_position = greatest(last_position + 1, ` + slot + `), progressed = clock_timestamp()
	WHERE id = $1::bytea` + fenced + ` AND (given_up IS NULL OR $6::bigint <> ALL (given_up))
	RETURNING no, last_seq, last_position, progressed AS now
), e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
	SELECT no, last_seq, last_position, $6::bigint, $2::bigint, now, $7::bytea, $4::bytea, $8::bytea FROM r
)
SELECT r.now, r.last_seq` + whyNot

	appendMany = `WITH r AS (
	UPDATE tapestore.runs SET last_seq = last_seq + $9::bigint,
		last_position = greatest(last_position + 1, ` + slot + `) + $9::bigint - 1, progressed = clock_timestamp()
	WHERE id = $1::bytea` + fenced + ` AND (given_up IS NULL OR NOT given_up && $6::bigint[])
	RETURNING no, last_seq, last_position, progressed AS now
), e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
	SELECT r.no, r.last_seq - $9::bigint + e.i, r.last_position - $9::bigint + e.i,
		e.nonce, $2::bigint, r.now, e.kind, $4::bytea, e.data
	FROM r, unnest($6::bigint[], $7::bytea[], $8::bytea[]) WITH ORDINALITY AS e (nonce, kind, data, i)
)
SELECT r.now, r.last_seq` + whyNot

	// renew is a heartbeat: it changes one row, and no column that is in an index.
	//
	// $5 microseconds, $6 nonce.
	renew = `WITH r AS (
	UPDATE tapestore.runs SET expires = greatest(expires, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		ttl = $5::bigint, renewed = clock_timestamp()
	WHERE id = $1::bytea` + fenced + ` AND (max_stall = 0 OR clock_timestamp() <= progressed + max_stall * interval '1 microsecond')
		AND (given_up IS NULL OR $6::bigint <> ALL (given_up)) RETURNING expires AS now, is_strict, reactor
)
SELECT r.now, r.is_strict, r.reactor` + whyNot

	// slot is the first position of this transaction (see feed.go).
	slot = `$5::bigint + (pg_current_xact_id()::text::bigint << 14)`

	// fenced is the fence as a condition on a row of runs. PostgreSQL evaluates it before it
	// waits for the row, and again only if the row was changed meanwhile. So the condition
	// locks the row of a strict lease by itself before it reads the clock. It does so once
	// for a statement, and not at all for other leases.
	fenced = ` AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (NOT is_strict OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE)
			AND expires > clock_timestamp())`

	whyNot = `, CASE WHEN r.now IS NULL THEN tapestore.refusal($1::bytea) END FROM (SELECT) AS one LEFT JOIN r ON true`
)

// unit is a statement with the requests that it serves.
type unit struct {
	sql      string
	args     []any
	read     func(rows pgx.Rows, a *answer) error
	requests []*request
	ready    func() // if not nil, is called when there is a connection
}

// units makes the statements of a group, and returns the contenders for the lease
// that need none of their own unless it turns out so.
func (s *Store) units(group []*request) (all []*unit, contenders []*request) {
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
			u.sql, u.args, u.read = callWrite, r.write.args(r.nonce, 0), u.readAnswer
		case r.ttl > 0:
			u.sql, u.args, u.read = renew, append(fenceArgs(r.fence), r.ttl.Microseconds(), r.nonce), u.readRenewed
		default:
			for i+1 < len(group) && group[i+1].fence == r.fence && group[i+1].write == nil && group[i+1].ttl == 0 {
				i++
				u.requests = append(u.requests, group[i])
			}
			_, base := s.positions.current()
			u.append(base)
		}
		all = append(all, u)
	}
	return all, contenders
}

func fenceArgs(f runstore.Fence) []any {
	return []any{[]byte(f.Run()), int64(f.Token()), []byte(f.Grant()), data([]byte(f.Owner()))}
}

// append chooses the statement for the events of the unit's requests.
func (u *unit) append(base int64) {
	n := 0
	for _, r := range u.requests {
		n += len(r.events)
	}
	u.read = u.readAppended
	args := append(fenceArgs(u.requests[0].fence), base)
	if n == 1 {
		e := u.requests[0].events[0]
		u.sql, u.args = appendOne, append(args, u.requests[0].nonce, []byte(e.Kind), data(e.Data))
		return
	}
	nonces, kinds, payloads := make([]*int64, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
	for _, r := range u.requests {
		for i, e := range r.events {
			var nonce *int64
			if i == 0 {
				nonce = &r.nonce
			}
			nonces, kinds, payloads = append(nonces, nonce), append(kinds, []byte(e.Kind)), append(payloads, data(e.Data))
		}
	}
	u.sql, u.args = appendMany, append(args, nonces, kinds, payloads, int64(n))
}

// sendGroup sends the requests of a group in one round trip, which is one
// transaction, and fills in their answers: all have one, or all have the error.
func (s *Store) sendGroup(ctx context.Context, group []*request) {
	for len(group) > 0 {
		all, contenders := s.units(group)
		for _, r := range group {
			r.sent = s.here.Read()
		}
		answers, err := s.ask(ctx, all)
		if err != nil && len(group) > 1 && fateOf(err) == failed && !timedOut(err) && ctx.Err() == nil {
			// One has spoilt it for all: its neighbours are not to suffer.
			for _, r := range group {
				s.sendGroup(ctx, []*request{r})
			}
			return
		}
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

// answerContenders answers the other requests for the lease by what the server told the
// first of them, and returns those that have to be sent themselves. One that repeats the
// current grant is: what the first read of that grant may be on no synchronous standby.
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
		case replay && first.answer.verdict != refused: // then it waited for the row's lock, and its commit for the standbys
			r.answer.verdict = appliedBefore
		default:
			rest = append(rest, r)
		}
	}
	return rest
}

// ask runs statements in one round trip and one transaction.
func (s *Store) ask(ctx context.Context, all []*unit) ([]answer, error) {
	var requests []*request
	for _, u := range all {
		requests = append(requests, u.requests...)
	}
	conn, done, err := s.connect(ctx, purposeOf(requests))
	if err != nil {
		return nil, err
	}
	defer done()
	for _, r := range requests {
		r.underWay()
	}
	answers := make([]answer, len(all))
	err = acknowledged(conn.Conn(), func() error {
		if len(all) > 1 {
			return s.queue(ctx, conn.Conn(), all, answers)
		}
		u := all[0]
		if u.ready != nil {
			u.ready()
		}
		rows, err := conn.Query(ctx, s.sql(u.sql), u.args...)
		if err != nil {
			return err
		}
		err = one(rows, u, &answers[0])
		rows.Close()
		return errors.Join(rows.Err(), err)
	})
	return answers, err
}

// queue runs statements one after another in one round trip.
func (s *Store) queue(ctx context.Context, conn *pgx.Conn, all []*unit, answers []answer) error {
	var batch pgx.Batch
	for _, u := range all {
		batch.Queue(s.sql(u.sql), u.args...)
	}
	results := conn.SendBatch(ctx, &batch)
	for i, u := range all {
		rows, err := results.Query()
		if err == nil {
			err = one(rows, u, &answers[i])
			rows.Close()
		}
		if err != nil {
			return errors.Join(err, results.Close())
		}
	}
	return results.Close() // it returns the error of the commit itself
}

// one reads the one row of a statement's answer.
func one(rows pgx.Rows, u *unit, a *answer) error {
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return errNoAnswer
	}
	return u.read(rows, a)
}
