-- lease_release ends the current grant. If the run has results to evict, or the fence does not
-- hold, tapestore.write performs or refuses the release, and the statement returns its result as
-- JSON; see grant.go.
--
-- PostgreSQL evaluates a condition before it waits for the row, and again only if the row was
-- changed meanwhile. So for leases for which the time matters (strict, or with a bound on progress)
-- a sub-select of the condition locks the row before any clock is read. The sub-select runs once
-- per statement, and not at all for other leases.
--
-- $1 id of the run, $2 token, $3 grant id, $4 owner, $5 nonce
WITH r AS (
	UPDATE tapestore.runs SET grant_state = 2, ended = clock_timestamp(), place = runnable, batches = batches + 1
	WHERE id = $1::bytea
		AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (NOT is_strict AND max_stall = 0 OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE)
			AND (NOT is_strict OR expires > clock_timestamp()))
		AND (void_nonces IS NULL OR $5::bigint <> ALL (void_nonces))
		AND (batches + 1) % 128 <> 0
	RETURNING no, last_seq, batches, ended AS now
), b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions)
	SELECT no, batches - 1, 0, last_seq, now, $5::bigint, 'n'::bytea || int8send($5::bigint), '{}' FROM r
)
SELECT now, last_seq, CASE WHEN now IS NULL AND set_config('bytea_output', 'hex', true) || set_config('timezone', 'UTC', true) <> '' THEN to_jsonb(tapestore.write(
	op => 3::smallint, run_id => $1::bytea, this_nonce => $5::bigint,
	result_name => NULL,
	fence_token => $2::bigint, fence_grant => $3::bytea, fence_owner => $4::bytea,
	want_token => NULL, want_seq => NULL, want_statuses => NULL,
	want_keys => NULL, want_versions => NULL,
	lease_owner => NULL, lease_reactor => NULL,
	lease_ttl => NULL, lease_strict => false, lease_stall => 0, lease_grant => NULL, lease_preempt => NULL,
	lowest => 0,
	kinds => NULL, payloads => NULL,
	record_keys => NULL, record_values => NULL, record_events => NULL,
	place_records => NULL, place_names => NULL,
	place_times => NULL, place_afters => NULL,
	new_status => NULL,
	set_runnable => false, runnable_at => NULL, runnable_after => NULL,
	ends_grant => true, purges => false, is_unlisted => false, one_instant => false)) END
FROM (SELECT) AS one LEFT JOIN r ON true
