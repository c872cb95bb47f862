package postgres

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
)

// An acquire without guards and writes, and a release without them, are one SQL statement each. In
// the uncommon cases (the run does not exist, the grant was made or ended before, the nonce was
// voided, another writer was faster) the statement changes nothing and calls tapestore.write, in
// the same round trip. Its invariants:
//
//  1. A contender that sees a live lease of another holder does not lock the row. It is refused on
//     what it sees.
//  2. Whether the lease is free is a condition on the row under its lock, as the fence of a release
//     is. A sub-select takes the lock before the statement reads the clock from which the new lease
//     counts.
//  3. The former grants are read in the snapshot, which is older than the lock. So the token of the
//     locked row must equal the token of the snapshot: then no grant was made in between.
//  4. The epoch is read in the snapshot too. A raise of the epoch locks the table, and the
//     statement locks the table before it takes its snapshot, so no raise happens in between.
const (
	// acquireFree grants a free lease.
	//
	// $1 run, $2 nonce, $3 grant, $4 owner, $5 reactor, $6 TTL in microseconds, $7 strict, $8
	// longest time without progress in microseconds.
	acquireFree = `WITH seen AS MATERIALIZED (
	SELECT runs.no, ` + headColumns + `, formers.former, grant_state = 1 AND expires > clock_timestamp() AND grant_id <> $3::bytea AS held
	FROM tapestore.runs LEFT JOIN tapestore.grants AS formers ON formers.run = runs.no WHERE id = $1::bytea AND NOT purged
), r AS (
	UPDATE tapestore.runs SET token = ` + nextToken + `, recent = (ARRAY[$2::bigint, ` + nextToken + `] || recent)[1:32],
		former_end = CASE grant_state WHEN 0 THEN 0 WHEN 2 THEN 1 WHEN 3 THEN 5 ELSE 3 END,
		grant_state = 1, grant_id = $3::bytea, owner = $4::bytea, reactor = $5::bytea, is_strict = $7::boolean, preempted_from = '', preempt_reason = '',
		ttl = $6::bigint, max_stall = $8::bigint, (granted, renewed, progressed, expires, indexed_expires, place) = (
			SELECT now, now, now, until, until, CASE WHEN runs.runnable IS NOT NULL THEN greatest(runs.runnable, until) END
			FROM (SELECT now, now + $6::bigint * interval '1 microsecond' AS until FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock) AS lease)
	WHERE no = (SELECT locked.no FROM seen JOIN tapestore.runs AS locked ON locked.no = seen.no AND locked.token = seen.token
			WHERE NOT held AND tapestore.former($3::bytea) = ANY (seen.former) IS NOT true FOR NO KEY UPDATE OF locked)
		AND (grant_state <> 1 OR expires <= clock_timestamp()) AND (grant_state = 0 OR grant_id <> $3::bytea) AND NOT purged
		AND (void_nonces IS NULL OR $2::bigint <> ALL (void_nonces))
	RETURNING ` + headColumns + `
), g AS (
	INSERT INTO tapestore.grants AS g (run, former) SELECT no, ARRAY[tapestore.former(grant_id)] FROM seen WHERE grant_state <> 0 AND EXISTS (SELECT FROM r)
	ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64] RETURNING g.former
)
SELECT 1::smallint, runs.granted, ` + headColumns + `, (SELECT epoch FROM tapestore.store), (SELECT former FROM g) FROM r AS runs
UNION ALL SELECT 0::smallint, clock_timestamp(), ` + headColumns + `, (SELECT epoch FROM tapestore.store), former FROM seen AS runs WHERE held
UNION ALL SELECT w.verdict, w.now, {answered}, w.epoch, tapestore.former_grants(2::smallint, $1::bytea)
FROM tapestore.write(2::smallint, $1::bytea, $2::bigint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	$4::bytea, $5::bytea, $6::bigint, $7::boolean, $8::bigint, $3::bytea, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, false, NULL, NULL, false, false, false, false) AS w
WHERE NOT EXISTS (SELECT FROM r) AND NOT EXISTS (SELECT FROM seen WHERE held)`

	nextToken = `greatest(token, (SELECT epoch << 40 FROM tapestore.store)) + 1`

	// release ends the current grant. If the run has results to evict, tapestore.write performs the
	// release.
	//
	// $1 run, $2 token, $3 grant, $4 owner, $5 nonce.
	release = `WITH r AS (
	UPDATE tapestore.runs SET grant_state = 2, place = runnable, batches = batches + 1
	WHERE id = $1::bytea` + fenced + ` AND (void_nonces IS NULL OR $5::bigint <> ALL (void_nonces)) AND (batches + 1) % 128 <> 0
	RETURNING no, token, last_seq, batches, former_end, clock_timestamp() AS now
), b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions, token, former_end)
	SELECT no, batches - 1, 0, last_seq, now, $5::bigint, 'n'::bytea || int8send($5::bigint), '{}', token, former_end FROM r
)
SELECT now, last_seq, CASE WHEN now IS NULL AND set_config('bytea_output', 'hex', true) || set_config('timezone', 'UTC', true) <> '' THEN to_jsonb(tapestore.write(
	3::smallint, $1::bytea, $5::bigint, NULL, $2::bigint, $3::bytea, $4::bytea, NULL, NULL, NULL, NULL, NULL,
	NULL, NULL, NULL, false, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, false, NULL, NULL, true, false, false, false)) END
FROM (SELECT) AS one LEFT JOIN r ON true`
)

// acquire is acquireFree with the columns of tapestore.answer.
var acquire = strings.Replace(acquireFree, "{answered}",
	strings.ReplaceAll(strings.ReplaceAll(headColumns, "runs.last_seq", "w.seq"), "runs.", "w."), 1)

// acquire sets the dedicated statement for an acquire.
func (st *statement) acquire() {
	r := st.requests[0]
	l := r.acquire.LeaseSpec
	st.sql, st.read = acquire, st.readAcquired
	st.args = []any{
		[]byte(r.run), r.nonce, []byte(l.Grant), data([]byte(l.Owner)), data([]byte(l.Reactor)), l.TTL.Microseconds(), l.Strict, l.MaxStall.Microseconds(),
	}
}

// readAcquired reads the result of an acquire.
func (st *statement) readAcquired(rows pgx.Rows, a *writeResult) error {
	var status pgtype.Int2
	var now pgtype.Timestamptz
	var head nullHead
	var epoch pgtype.Int8
	var former [][]byte
	if err := rows.Scan(append(append([]any{&status, &now}, head.targets()...), &epoch, &former)...); err != nil {
		return err
	}
	*a = writeResult{status: writeStatus(status.Int16), now: timeOf(now), last: runstore.Seq(head.seq.Int64), head: head.head(st.requests[0].run)}
	a.head.Epoch = runstore.Epoch(epoch.Int64)
	for _, one := range former {
		a.head.Former = append(a.head.Former, one...)
	}
	return nil
}

// release sets the dedicated statement for a release.
func (st *statement) release() {
	r := st.requests[0]
	st.sql, st.args, st.read = release, append(fenceArgs(r.write.fence), r.nonce), st.readReleased
}

// readReleased reads the result of a release: its own, or that of tapestore.write.
func (st *statement) readReleased(rows pgx.Rows, a *writeResult) error {
	var now pgtype.Timestamptz
	var last pgtype.Int8
	var written []byte
	if err := rows.Scan(&now, &last, &written); err != nil || written != nil {
		return errors.Join(err, a.fromJSON(written, st.requests[0].run))
	}
	*a = writeResult{status: statusApplied, now: timeOf(now), last: runstore.Seq(last.Int64)}
	return nil
}
