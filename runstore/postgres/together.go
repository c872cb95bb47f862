package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
)

// appendTogether does for several runs what appendMany does for one. A row that was
// changed since the statement began is looked at again before it is locked, so the
// fence is checked on what is locked:
// https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
//
// $1 to $6 have an element for each run: run, token, grant, owner, position of
// transaction 0, how many events. $7 to $11 have one for each event: which run (from 1),
// which of the run's events (from 1), nonce, kind, data.
const appendTogether = `WITH locked AS (
	SELECT runs.no, w.token, w.owner, w.base, w.n, w.i
	FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[])
		WITH ORDINALITY AS w (id, token, grant_id, owner, base, n, i)
	JOIN tapestore.runs ON runs.id = w.id
	WHERE runs.token = w.token AND runs.grant_id = w.grant_id AND runs.owner = w.owner AND grant_state = 1 AND NOT purged
		AND (NOT is_strict OR expires > clock_timestamp()) AND (given_up IS NULL OR NOT given_up && $9::bigint[])
	FOR NO KEY UPDATE OF runs SKIP LOCKED
), r AS (
	UPDATE tapestore.runs SET last_seq = last_seq + l.n,
		last_position = greatest(last_position + 1, l.base + (pg_current_xact_id()::text::bigint << 14)) + l.n - 1, progressed = clock_timestamp()
	FROM locked l WHERE runs.no = l.no
	RETURNING runs.no, last_seq, last_position, progressed AS now, l.token, l.owner, l.n, l.i
), e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data)
	SELECT r.no, r.last_seq - r.n + e.nth, r.last_position - r.n + e.nth, e.nonce, r.token, r.now, e.kind, r.owner, e.data
	FROM unnest($7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bytea[]) AS e (i, nth, nonce, kind, data)
	JOIN r ON r.i = e.i
)
SELECT array_agg(i), array_agg(now), array_agg(last_seq) FROM r`

// sendTogether sends parties in one statement and fills in their answers: all have
// one, but for those that are left out, or all have the error.
func (s *Store) sendTogether(ctx context.Context, parties []*party) {
	var (
		runs, grants, owners, kinds, payloads [][]byte
		tokens, bases, counts, which, nth     []int64
		nonces                                []*int64
	)
	total := 0
	for _, p := range parties {
		total += p.appends()
	}
	_, base := s.positions.current()
	spare := int64(maxGroupEvents-total) / int64(len(parties)) // for who comes later, see feed.go
	for i, p := range parties {
		f, n := p.group[0].fence, p.appends()
		runs, grants, owners = append(runs, []byte(f.Run())), append(grants, []byte(f.Grant())), append(owners, data([]byte(f.Owner())))
		tokens, bases, counts = append(tokens, int64(f.Token())), append(bases, base), append(counts, int64(n))
		base += int64(n) + spare
		for _, r := range p.group {
			r.sent = s.here.Read()
			for k, e := range r.events {
				var nonce *int64
				if k == 0 {
					nonce = &r.nonce
				}
				which, nonces = append(which, int64(i+1)), append(nonces, nonce)
				kinds, payloads = append(kinds, []byte(e.Kind)), append(payloads, data(e.Data))
			}
		}
		for k := range n {
			nth = append(nth, int64(k+1))
		}
	}
	u := &unit{sql: appendTogether, args: []any{runs, tokens, grants, owners, bases, counts, which, nth, nonces, kinds, payloads}}
	for _, p := range parties {
		p.leftOut = true
	}
	for _, p := range parties {
		u.requests = append(u.requests, p.group...)
	}
	u.read = func(rows pgx.Rows, _ *answer) error { return readTogether(rows, parties) }
	_, err := s.ask(ctx, []*unit{u})
	if err == nil {
		return
	}
	// One may have spoilt it for all: then each goes alone.
	spoilt := fateOf(err) == failed && !timedOut(err) && ctx.Err() == nil
	for _, p := range parties {
		p.leftOut = spoilt
		for _, r := range p.group {
			r.err = err
		}
	}
}

func (p *party) appends() (n int) {
	for _, r := range p.group {
		n += r.appends()
	}
	return n
}

// readTogether reads the answer of appendTogether, which has an element for each run
// that was not left out.
func readTogether(rows pgx.Rows, parties []*party) error {
	var which, last []int64
	var now []pgtype.Timestamptz
	if err := rows.Scan(&which, &now, &last); err != nil {
		return err
	}
	for k, i := range which {
		p := parties[i-1]
		p.leftOut = false
		next := runstore.Seq(last[k]) - runstore.Seq(p.appends()) + 1
		for _, r := range p.group {
			r.answer = answer{verdict: applied, now: timeOf(now[k]), first: next, last: next + runstore.Seq(len(r.events)) - 1}
			next = r.answer.last + 1
		}
	}
	return nil
}
