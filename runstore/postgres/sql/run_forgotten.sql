-- run_forgotten reports what may have deleted the trace of a write: whether the run was ever purged while
-- it held anything, whether its row may have evicted the trace of a purge, whether it is purged now, its
-- age in microseconds, whether results of it were evicted, and the age in microseconds of its oldest result
-- of one kind. The row exists: write_settle inserts it.
--
-- $1 id of the run
-- $2 whether the kind is that of results of a nonce, of which none is younger than a write whose own was
--    evicted; otherwise that of results with a name
SELECT version_floor > 0, coalesce(cardinality(recent) >= 32, false), purged, (extract(epoch FROM clock_timestamp() - created) * 1000000)::bigint, batches > 256,
	coalesce((SELECT (extract(epoch FROM clock_timestamp() - min(at)) * 1000000)::bigint FROM tapestore.batches
		WHERE run = no AND (get_byte(id, 0) = 110) = $2::boolean), CASE WHEN $2::boolean THEN 0 ELSE 9223372036854775807 END)
FROM tapestore.runs
WHERE id = $1::bytea
