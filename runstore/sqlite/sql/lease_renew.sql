-- lease_renew is a heartbeat: it extends a lease if its fence holds, and returns the new expiry,
-- the reactor and whether the lease is strict. It changes one row, and no indexed column.
--
-- ?1 new expiry, ?2 TTL, ?3 present time, ?4 id of the run, ?5 token, ?6 grant id, ?7 owner, ?8 and
-- ?9 present time. Times and durations are in microseconds.
UPDATE runs SET expires = max(expires, ?), ttl = ?, renewed = ?
WHERE id = ? AND purged = 0
	AND token = ? AND grant_id = ? AND owner = ? AND grant_state = 1
	AND (strict = 0 OR expires > ?)
	AND (max_stall = 0 OR progressed + max_stall >= ?)
RETURNING expires, reactor, strict
