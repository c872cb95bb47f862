package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// renew is a heartbeat: it changes one row, and no column that is in an index.
	//
	// $1 run, $2 token, $3 grant, $4 owner, $5 microseconds, $6 nonce.
	renew = `WITH r AS (
	UPDATE tapestore.runs SET expires = greatest(expires, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		ttl = $5::bigint, renewed = clock_timestamp()
	WHERE id = $1::bytea` + fenced + ` AND (max_stall = 0 OR clock_timestamp() <= progressed + max_stall * interval '1 microsecond')
		AND (void_nonces IS NULL OR $6::bigint <> ALL (void_nonces)) RETURNING expires AS now, is_strict, reactor
)
SELECT r.now, r.is_strict, r.reactor` + whyNot

	// fenced is the fence as a condition on a row of runs, with that of timely.
	fenced = ` AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged` + timely

	// timely is the end of a strict lease as a condition on a row of runs. PostgreSQL evaluates a
	// condition before it waits for the row, and again only if the row was changed meanwhile. So
	// where the time matters, for a strict lease and for one with a bound on its progress, the
	// condition locks the row by itself before any clock is read. It does so once for a statement,
	// and not at all for other leases. An append has it only where the lease is known to be such a
	// one, see hints.
	timely = `
		AND (NOT is_strict AND max_stall = 0 OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE)
			AND (NOT is_strict OR expires > clock_timestamp()))`

	whyNot = `, CASE WHEN r.now IS NULL THEN tapestore.refusal($1::bytea) END FROM (SELECT) AS one LEFT JOIN r ON true`
)

// unit is a statement with the requests that it serves.
type unit struct {
	sql      string
	args     []any
	read     func(rows pgx.Rows, a *answer) error
	requests []*request
	form     form   // of a commit's statement
	ready    func() // if not nil, is called when there is a connection

	// Of a statement for several batches: those of each run, and whether they were applied.
	groups  [][]*request
	applied []bool
}

// units makes the statements of a group, and returns the contenders for the lease
// that need none of their own unless it turns out so.
func (s *Store) units(group []*request) (all []*unit, contenders []*request) {
	var asked bool
	for i := 0; i < len(group); i++ {
		r := group[i]
		u := &unit{requests: []*request{r}}
		switch {
		case r.direct():
			for r.plain() && !r.apart && i+1 < len(group) && group[i+1].plain() && group[i+1].fence == r.fence {
				i++
				u.requests = append(u.requests, group[i])
			}
			_, base := s.positions.current()
			u.commit(base)
		case r.write != nil:
			if r.acquire != nil {
				if asked {
					contenders = append(contenders, r)
					continue
				}
				asked = true
				u.acquire()
				break
			}
			if r.releases {
				u.release()
				break
			}
			u.sql, u.args, u.read = callWrite, r.write.args(r.nonce, 0), u.readAnswer
		default:
			u.sql, u.args, u.read = renew, append(fenceArgs(r.fence), r.ttl.Microseconds(), r.nonce), u.readRenewed
		}
		all = append(all, u)
	}
	return all, contenders
}

func fenceArgs(f runstore.Fence) []any {
	return []any{[]byte(f.Run()), int64(f.Token()), []byte(f.Grant()), data([]byte(f.Owner()))}
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
		if err != nil && len(group) > 1 && spoils(err) && ctx.Err() == nil {
			// One has spoilt it for all: its neighbours are not to suffer.
			for _, r := range group {
				s.sendGroup(ctx, []*request{r})
			}
			return
		}
		var rest []*request
		for i, u := range all {
			for _, r := range u.requests {
				switch {
				case err != nil:
					r.err = err
				case u.groups == nil:
					r.answer, r.err = answers[i], nil
				case !u.applied[0]: // one of them is refused, or a repeat
					r.apart = true
					rest = append(rest, r)
				}
			}
		}
		group = append(answerContenders(all, contenders, err), rest...)
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
