-- run_purges reports whether a run was ever purged while it held anything, whether it is purged
-- now, and its age in microseconds. The row exists: write_settle inserts it.
--
-- $1 id of the run
SELECT version_floor > 0, purged, (extract(epoch FROM clock_timestamp() - created) * 1000000)::bigint
FROM tapestore.runs
WHERE id = $1::bytea
