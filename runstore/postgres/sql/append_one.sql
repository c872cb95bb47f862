-- append_one is the fenced write of one event, of one record, or of both, under at most one id and
-- one guard. One statement checks the fence on the row of the run, assigns the seq and the
-- position, and stores what belongs to the write; see statement.go for its invariants. It returns
-- 1, the time, the last seq and the versions of the records, or no row if a condition did not hold.
--
-- Parts: event, there is an event; named, there is a name for the result; guarded, the version of a
-- record is checked; puts, a record is put; inserts, a record is put that is guarded to be new;
-- record, one of the last two; checked, the write depends on what the snapshot has of a record, so
-- the locked row must be that of the snapshot; timed, the lease is strict or has a bound on its
-- progress.
--
-- $1 id of the run, $2 token, $3 grant id, $4 owner, $5 position of transaction 0, $10 nonce, $11
-- kind, $12 data, $18 name of the result, $20 key and $21 version of the guard, $23 key, $24 value
-- and $25 event of the record, $31 number of the last transaction that has a position. The
-- parameters of a variant are renumbered.
--
-- The condition on the position is one expression, because a condition on the number of the
-- transaction alone would be another node of the plan. For the condition on the time of a lease see
-- lease_renew.
WITH r AS (
	UPDATE tapestore.runs SET progressed = clock_timestamp()
		, last_seq = runs.last_seq + 1, last_position = greatest(runs.last_position + 1, $5::bigint + (txid_current() << 14)) -- if event
		, batches = runs.batches + 1 -- if named
	WHERE runs.id = $1::bytea AND runs.token = $2::bigint AND runs.grant_id = $3::bytea AND runs.owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (void_nonces IS NULL OR $10::bigint <> ALL (void_nonces))
		AND runs.last_position < CASE WHEN txid_current() <= $31::bigint THEN 9007199254740991 END -- if event
		AND (runs.last_seq, runs.batches) = (SELECT seen.last_seq, seen.batches FROM tapestore.runs AS seen WHERE seen.id = $1::bytea) -- if checked
		AND (runs.batches + 1) % 128 <> 0 -- if named
		AND (SELECT true FROM tapestore.batches WHERE run = runs.no AND batches.id = $18::bytea) IS NULL -- if named
		-- if guarded
		AND NOT EXISTS (SELECT FROM (SELECT 1::bigint, $20::bytea, $21::bigint) AS wanted (i, key, version)
			WHERE wanted.i = 1::bigint AND wanted.version <> coalesce((SELECT version FROM tapestore.records WHERE run = runs.no AND records.key = wanted.key), 0))
		-- end
		AND (SELECT true FROM tapestore.records WHERE run = runs.no AND records.key = $23::bytea) IS NULL -- if inserts
		AND NOT is_strict AND max_stall = 0 -- if not timed
		-- if timed
		AND (NOT is_strict AND max_stall = 0 OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE)
			AND (NOT is_strict OR expires > clock_timestamp()))
		-- end
	RETURNING no, runs.token, runs.owner, runs.last_seq, last_position, progressed AS now
		, runs.batches -- if named
		, version_floor -- if record
)
-- if puts
, changed AS MATERIALIZED (
	SELECT no, token, now, last_seq, coalesce(former.version, version_floor) + 1 AS version, former.places
	FROM r LEFT JOIN LATERAL (SELECT * FROM tapestore.records WHERE run = no AND records.key = $23::bytea OFFSET 0) AS former ON true
), put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version, last_seq, last_seq, now, now, token, token, 0, $23::bytea, $24::bytea FROM changed
	ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, updated_seq = excluded.updated_seq, updated = excluded.updated,
		updated_token = excluded.updated_token, places = excluded.places, value = excluded.value
), gone AS (
	DELETE FROM tapestore.places USING changed WHERE changed.places > 0 AND places.run = changed.no AND places.key = $23::bytea
)
-- end
-- if inserts
, put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version_floor + 1, last_seq, last_seq, now, now, token, token, 0, $23::bytea, $24::bytea FROM r
)
-- end
-- if event
, e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
	SELECT no, last_seq, last_position, $10::bigint, token, now, $11::bytea, owner, $12::bytea
		, NULL -- if not record
		, ARRAY(SELECT version FROM changed) -- if puts
		, ARRAY[coalesce(version_floor, 0) + 1] -- if inserts
	FROM r
)
-- end
-- if named
, b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
	SELECT no, batches - 1
		, last_seq -- if event
		, 0 -- if not event
		, last_seq, now, $10::bigint, $18::bytea
		, '{}'::bigint[] -- if not record
		, ARRAY(SELECT version FROM changed) -- if puts
		, ARRAY[coalesce(version_floor, 0) + 1] -- if inserts
	FROM r
)
-- end
SELECT 1::bigint, now, last_seq
	, '{}'::bigint[] -- if not record
	, ARRAY(SELECT version FROM changed) -- if puts
	, ARRAY[coalesce(version_floor, 0) + 1] -- if inserts
FROM r
