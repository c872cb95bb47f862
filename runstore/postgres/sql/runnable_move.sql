-- runnable_move examines the next entries of the index of runnable runs and moves those of live
-- leases to the expiry of the lease. It waits for no row lock, and its commit waits neither for the
-- disk nor for standbys. It returns how many entries it moved and the place of the last one, if
-- there may be more after it.
--
-- $1 the place of the first entry, $2 the time by which the scan judged leases or NULL for the
-- present time, {limit} number of entries; see journal_page
WITH due AS MATERIALIZED (
	SELECT no, place, grant_state = 1 AND expires > coalesce($2::timestamptz, statement_timestamp()) AS live
	FROM tapestore.runs
	WHERE place >= $1::timestamptz AND place <= coalesce($2::timestamptz, statement_timestamp())
	ORDER BY place, created, no LIMIT {limit}
), locked AS (
	SELECT runs.no FROM due JOIN tapestore.runs ON runs.no = due.no AND runs.grant_state = 1
	WHERE live FOR NO KEY UPDATE OF runs SKIP LOCKED
), moved AS (
	UPDATE tapestore.runs SET indexed_expires = expires,
		place = CASE WHEN place IS NOT NULL THEN greatest(runnable, expires) END
	FROM locked WHERE runs.no = locked.no
	RETURNING runs.no
)
SELECT (SELECT count(*) FROM moved), (SELECT max(place) FROM due HAVING count(*) = {limit}), set_config('synchronous_commit', 'off', true)
