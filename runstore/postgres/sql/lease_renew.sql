-- lease_renew is a heartbeat: it extends a lease if its fence holds. It changes one row and no
-- indexed column, so it is a HOT update. It returns the new expiry, whether the lease is strict,
-- and the reactor; or the reason of the refusal.
--
-- PostgreSQL evaluates a condition before it waits for the row, and again only if the row was
-- changed meanwhile. So for leases for which the time matters (strict, or with a bound on progress)
-- a sub-select of the condition locks the row before any clock is read. The sub-select runs once
-- per statement, and not at all for other leases.
--
-- $1 id of the run, $2 token, $3 grant id, $4 owner, $5 TTL in microseconds, $6 nonce
WITH r AS (
	UPDATE tapestore.runs SET expires = greatest(expires, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		ttl = $5::bigint, renewed = clock_timestamp()
	WHERE id = $1::bytea
		AND token = $2::bigint AND grant_id = $3::bytea AND owner = $4::bytea AND grant_state = 1 AND NOT purged
		AND (NOT is_strict AND max_stall = 0 OR (SELECT true FROM tapestore.runs AS locked WHERE locked.id = $1::bytea FOR NO KEY UPDATE)
			AND (NOT is_strict OR expires > clock_timestamp()))
		AND (max_stall = 0 OR clock_timestamp() <= progressed + max_stall * interval '1 microsecond')
		AND (void_nonces IS NULL OR $6::bigint <> ALL (void_nonces))
	RETURNING expires AS now, is_strict, reactor
)
SELECT r.now, r.is_strict, r.reactor, CASE WHEN r.now IS NULL THEN tapestore.refusal($1::bytea) END
FROM (SELECT) AS one LEFT JOIN r ON true
