-- feed_lag returns how many committed events feed_page does not show yet, at most 10,000, and the
-- age of the oldest of them in microseconds. It runs in a transaction after feed_strangers.
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(time)) * 1000000, 0)::bigint
FROM (
	SELECT time
	FROM tapestore.events, (
		SELECT position_base + (greatest(coalesce((SELECT min(x::text::bigint) FROM pg_snapshot_xip(pg_current_snapshot()) AS x
					WHERE x <> ALL (coalesce(nullif(current_setting('tape.strangers', true), ''), '{}')::xid8[])),
				pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - xid_base, 0) << 14) AS safe,
			greatest(position_base, last_purged, (SELECT max(position) FROM tapestore.events)) AS known
		FROM tapestore.store
	) b
	WHERE position >= b.safe
	ORDER BY position LIMIT 10000
) late
