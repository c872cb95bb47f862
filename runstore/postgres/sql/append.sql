-- append is the fenced write of batches of one run, under one fence, or of batches of several runs;
-- see statement.go for its invariants and append_one for the conditions and parts that it shares.
--
-- Parts: alone, there is one batch; multi, there are several runs, and the statement skips those whose
-- row is locked; without it the statement applies the batches of one run or changes nothing; named,
-- results have names; records, records are guarded or put; timed. The statement returns a row for
-- each run whose batches it applied: the number of the run, the time, the last seq and the versions
-- of the records.
--
-- The conditions look up each row in a sub-select; as joins they might read all results or records
-- of the run, or all runs. A new record gets a version above that of every deleted record of the
-- run.
--
-- At every 128th result of a run, the oldest are evicted. tapestore.write does it for a batch that is
-- alone. Other statements do it themselves, because they carry many results: to send the batches of
-- every 128th again would cost more.
--
-- $1 to $7 are scalars, and with multi arrays with one element per run: id of the run, token, grant
-- id, owner, position of transaction 0, number of events, number of names. The others are arrays
-- that begin with the number of the run, from 1. $8 to $12, events: run, number within the run from
-- 1, nonce, kind, data. $13 to $18, names: run, number within the run from 0, first and last event
-- of the batch, nonce, name of the result. $19 to $21, guards: run, key, version. $22 to $26,
-- records: run, key, value, event from 0, number of index entries. $27 to $30, index entries: record
-- from 1, index, time, microseconds after the commit. The parameters of a variant are renumbered.
WITH seen AS MATERIALIZED ( -- if multi
-- if multi
	SELECT w.*, found.no AS run_no, last_seq, batches
	FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[])
		WITH ORDINALITY AS w (id, token, grant_id, owner, base, events, results, i)
	CROSS JOIN LATERAL (SELECT * FROM tapestore.runs WHERE runs.id = w.id OFFSET 0) AS found
	WHERE true
		AND NOT EXISTS (SELECT FROM unnest($13::bigint[], $18::bytea[]) AS new (i, id) -- if named
			WHERE new.i = w.i AND (SELECT true FROM tapestore.batches WHERE run = found.no AND batches.id = new.id)) -- if named
		AND NOT EXISTS (SELECT FROM unnest($19::bigint[], $20::bytea[], $21::bigint[]) AS wanted (i, key, version) -- if records
			WHERE wanted.i = w.i AND wanted.version <> coalesce((SELECT version FROM tapestore.records WHERE run = found.no AND records.key = wanted.key), 0)) -- if records
), locked AS (
	SELECT w.* FROM seen AS w JOIN tapestore.runs ON runs.no = w.run_no
		AND runs.id = w.id AND runs.token = w.token AND runs.grant_id = w.grant_id AND runs.owner = w.owner AND grant_state = 1 AND NOT purged
		AND (void_nonces IS NULL OR NOT void_nonces && $10::bigint[])
		AND greatest(runs.last_position + 1, w.base + (txid_current() << 14)) + w.events - 1 < 9007199254740992
		AND (runs.last_seq, runs.batches) = (w.last_seq, w.batches)
		AND (NOT is_strict OR expires > clock_timestamp())
	FOR NO KEY UPDATE OF runs SKIP LOCKED
), r AS (
	UPDATE tapestore.runs SET progressed = clock_timestamp(),
		last_seq = runs.last_seq + w.events, last_position = greatest(runs.last_position + 1, w.base + (txid_current() << 14)) + w.events - 1,
		batches = runs.batches + w.results
	FROM locked AS w
	WHERE runs.no = w.run_no
	RETURNING no, runs.token, runs.owner, runs.last_seq, last_position, progressed AS now, runs.batches, version_floor,
		w.i AS i, w.events AS events, w.results AS results
)
-- end
WITH r AS ( -- if not multi
-- if not multi
	UPDATE tapestore.runs SET progressed = clock_timestamp(),
		last_seq = runs.last_seq + $6::bigint, last_position = greatest(runs.last_position + 1, $5::bigint + (txid_current() << 14)) + $6::bigint - 1,
		batches = runs.batches + $7::bigint
	WHERE runs.id = $1::bytea AND runs.token = $2::bigint AND runs.grant_id = $3::bytea AND runs.owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (void_nonces IS NULL OR NOT void_nonces && $10::bigint[])
		AND greatest(runs.last_position + 1, $5::bigint + (txid_current() << 14)) + $6::bigint - 1 < 9007199254740992
		AND (runs.batches + 1) % 128 <> 0 -- if alone named
		AND (runs.last_seq, runs.batches) = (SELECT seen.last_seq, seen.batches FROM tapestore.runs AS seen WHERE seen.id = $1::bytea) -- if records
		AND NOT EXISTS (SELECT FROM unnest($13::bigint[], $18::bytea[]) AS new (i, id) -- if named
			WHERE new.i = 1::bigint AND (SELECT true FROM tapestore.batches WHERE run = runs.no AND batches.id = new.id)) -- if named
		AND NOT EXISTS (SELECT FROM unnest($19::bigint[], $20::bytea[], $21::bigint[]) AS wanted (i, key, version) -- if records
			WHERE wanted.i = 1::bigint AND wanted.version <> coalesce((SELECT version FROM tapestore.records WHERE run = runs.no AND records.key = wanted.key), 0)) -- if records
		AND NOT is_strict AND max_stall = 0 -- if not timed
		AND (NOT is_strict AND max_stall = 0 OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE) -- if timed
			AND (NOT is_strict OR expires > clock_timestamp())) -- if timed
	RETURNING no, runs.token, runs.owner, runs.last_seq, last_position, progressed AS now, runs.batches, version_floor,
		1::bigint AS i, $6::bigint AS events, $7::bigint AS results
)
-- end
-- if records
, changed AS MATERIALIZED (
	SELECT new.*, no, token, now, last_seq - events + least(1 + event, events) AS seq, coalesce(former.version, version_floor) + 1 AS version, former.places
	FROM r JOIN unnest($22::bigint[], $23::bytea[], $24::bytea[], $25::integer[], $26::smallint[]) WITH ORDINALITY AS new (i, key, value, event, placed, k)
		USING (i) LEFT JOIN LATERAL (SELECT * FROM tapestore.records WHERE run = no AND records.key = new.key OFFSET 0) AS former ON true
), put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version, seq, seq, now, now, token, token, placed, key, value FROM changed
	ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, updated_seq = excluded.updated_seq, updated = excluded.updated,
		updated_token = excluded.updated_token, places = excluded.places, value = excluded.value
), gone AS (
	DELETE FROM tapestore.places USING changed WHERE changed.places > 0 AND places.run = changed.no AND places.key = changed.key
), placed AS (
	INSERT INTO tapestore.places (at, written, run, name, key)
	SELECT coalesce(at, now + after * interval '1 microsecond'), now, no, name, key
	FROM changed JOIN unnest($27::integer[], $28::bytea[], $29::timestamptz[], $30::bigint[]) AS new (k, name, at, after) USING (k)
)
-- end
, e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
	SELECT no, last_seq - events + n, last_position - events + n, nonce, token, now, kind, owner, data
		, CASE WHEN n = 1 THEN nullif('{}'::bigint[], '{}') END -- if not records
		, CASE WHEN n = 1 THEN nullif(ARRAY(SELECT version FROM changed WHERE changed.i = r.i ORDER BY k), '{}') END -- if records
	FROM r JOIN unnest($8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[]) AS new (i, n, nonce, kind, data) USING (i)
)
-- if named
, b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
	SELECT no, batches - results + n, last_seq - events + first, last_seq - events + last, now, nonce, id
		, '{}'::bigint[] -- if not records
		, ARRAY(SELECT version FROM changed WHERE changed.i = r.i ORDER BY k) -- if records
	FROM r JOIN unnest($13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[]) AS new (i, n, first, last, nonce, id) USING (i)
)
-- end
-- if named not alone
, kept AS MATERIALIZED (
	SELECT no, batches, (SELECT named.n FROM tapestore.batches AS named
		WHERE named.run = no AND get_byte(named.id, 0) <> 110 ORDER BY named.n DESC OFFSET 127 LIMIT 1) AS named
	FROM r WHERE (batches - results) / 128 <> batches / 128
), forgotten AS (
	DELETE FROM tapestore.batches USING kept WHERE batches.run = kept.no AND batches.n < kept.batches - 256
		AND (get_byte(batches.id, 0) = 110 OR batches.n < kept.named)
)
-- end
SELECT i, now, last_seq
	, '{}'::bigint[] -- if not records
	, ARRAY(SELECT version FROM changed WHERE changed.i = r.i ORDER BY k) -- if records
FROM r
