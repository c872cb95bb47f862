-- run_forgotten reports what may have deleted the trace of a write: whether the run was ever purged while
-- it held anything, whether its row may have evicted the trace of a creation or a purge, how many microseconds
-- ago it was created or, if it is purged, was purged, whether results of it were evicted, and since how many
-- microseconds there is a result that proves that none of one kind was evicted since: the oldest one of that
-- kind, or the oldest of the last 256. The row exists: write_settle inserts it.
--
-- $1 id of the run
-- $2 whether the kind is that of results of a nonce, of which none is younger than a write whose own was
--    evicted; otherwise that of results with a name
SELECT version_floor > 0, coalesce(cardinality(recent) >= 32, false), (extract(epoch FROM clock_timestamp() - created) * 1000000)::bigint, batches > 256,
	greatest(
		coalesce((SELECT (extract(epoch FROM clock_timestamp() - min(at)) * 1000000)::bigint FROM tapestore.batches
			WHERE run = no AND (get_byte(id, 0) = 110) = $2::boolean), CASE WHEN $2::boolean THEN 0 ELSE 9223372036854775807 END),
		coalesce((SELECT (extract(epoch FROM clock_timestamp() - min(at)) * 1000000)::bigint FROM tapestore.batches AS kept
			WHERE run = no AND n >= runs.batches - 256), 9223372036854775807))
FROM tapestore.runs
WHERE id = $1::bytea
