-- lease_acquire grants a free lease. In the uncommon cases (the run does not exist, the grant was
-- made or ended before, the nonce was voided, another writer was faster) it changes nothing and
-- calls tapestore.write, in the same round trip; see grant.go. It returns the status of the write,
-- the time, the head of the run, the epoch and the former grants.
--
-- The term of the former grant is that of the snapshot. It is that of the locked row too: a renewal
-- changes the expiry, and an end the state.
--
-- $1 id of the run, $2 nonce, $3 grant id, $4 owner, $5 reactor, $6 TTL in microseconds, $7 strict,
-- $8 longest time without progress in microseconds
WITH seen AS MATERIALIZED (
	SELECT runs.no, runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		formers.former, runs.ended, grant_state = 1 AND expires > clock_timestamp() AND grant_id <> $3::bytea AS held
	FROM tapestore.runs LEFT JOIN tapestore.grants AS formers ON formers.run = runs.no
	WHERE id = $1::bytea AND NOT purged
), r AS (
	UPDATE tapestore.runs SET
		token = greatest(token, (SELECT epoch << 40 FROM tapestore.store)) + 1,
		recent = (ARRAY[$2::bigint, greatest(token, (SELECT epoch << 40 FROM tapestore.store)) + 1] || recent)[1:32],
		former_end = CASE grant_state WHEN 0 THEN 0 WHEN 2 THEN 1 WHEN 3 THEN 5 ELSE 3 END,
		grant_state = 1, ended = NULL, grant_id = $3::bytea, owner = $4::bytea, reactor = $5::bytea, is_strict = $7::boolean, preempted_from = '', preempt_reason = '',
		ttl = $6::bigint, max_stall = $8::bigint, (granted, renewed, progressed, expires, indexed_expires, place) = (
			SELECT now, now, now, until, until, CASE WHEN runs.runnable IS NOT NULL THEN greatest(runs.runnable, until) END
			FROM (SELECT now, now + $6::bigint * interval '1 microsecond' AS until FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock) AS lease)
	WHERE no = (SELECT locked.no FROM seen JOIN tapestore.runs AS locked ON locked.no = seen.no AND locked.token = seen.token
				AND locked.grant_state = seen.grant_state AND locked.expires IS NOT DISTINCT FROM seen.expires
			WHERE NOT held AND tapestore.former($3::bytea) = ANY (seen.former) IS NOT true FOR NO KEY UPDATE OF locked)
		AND (grant_state <> 1 OR expires <= clock_timestamp()) AND (grant_state = 0 OR grant_id <> $3::bytea) AND NOT purged
		AND (void_nonces IS NULL OR $2::bigint <> ALL (void_nonces))
	RETURNING runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted
), g AS (
	INSERT INTO tapestore.grants AS g (run, former, terms)
	SELECT seen.no, ARRAY[tapestore.former(seen.grant_id)], ARRAY[ROW(seen.token, seen.granted, seen.expires,
			CASE WHEN seen.grant_state = 1 THEN r.granted WHEN seen.ended >= seen.granted THEN seen.ended END,
			r.former_end, seen.owner, seen.reactor, '')::tapestore.term]
	FROM seen CROSS JOIN r WHERE seen.grant_state <> 0
	ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64], terms = tapestore.with_term(g.terms, excluded.terms[1])
	RETURNING g.former
)
SELECT 1::smallint, runs.granted, runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
	runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
	runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
	(SELECT epoch FROM tapestore.store), (SELECT former FROM g)
FROM r AS runs
UNION ALL
SELECT 0::smallint, clock_timestamp(), runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
	runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
	runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
	(SELECT epoch FROM tapestore.store), former
FROM seen AS runs
WHERE held
UNION ALL
SELECT w.verdict, w.now, w.status, w.created, w.runnable, w.seq, w.token, w.expires, w.grant_state,
	w.is_strict, w.grant_id, w.owner, w.reactor, w.preempted_from, w.preempt_reason,
	w.ttl, w.granted, w.renewed, w.max_stall, w.progressed, w.former_end, w.unlisted,
	w.epoch, tapestore.former_grants(op => 2::smallint, run_id => $1::bytea)
FROM tapestore.write(op => 2::smallint, run_id => $1::bytea, this_nonce => $2::bigint,
	result_name => NULL,
	fence_token => NULL, fence_grant => NULL, fence_owner => NULL,
	want_token => NULL, want_seq => NULL, want_statuses => NULL,
	want_keys => NULL, want_versions => NULL,
	lease_owner => $4::bytea, lease_reactor => $5::bytea,
	lease_ttl => $6::bigint, lease_strict => $7::boolean, lease_stall => $8::bigint, lease_grant => $3::bytea, lease_preempt => NULL,
	lowest => 0,
	kinds => NULL, payloads => NULL,
	record_keys => NULL, record_values => NULL, record_events => NULL,
	place_records => NULL, place_names => NULL,
	place_times => NULL, place_afters => NULL,
	new_status => NULL,
	set_runnable => false, runnable_at => NULL, runnable_after => NULL,
	ends_grant => false, purges => false, is_unlisted => false, one_instant => false) AS w
WHERE NOT EXISTS (SELECT FROM r) AND NOT EXISTS (SELECT FROM seen WHERE held)
