-- journal_page returns the events of a run from a seq on, or one row of NULLs if there are none. It
-- returns no row if there is no run. An event that the feed does not show yet has the position 0;
-- see feed.go.
--
-- A page ends where its size exceeds the limit in bytes. The server computes the end, because the
-- client would have to read everything that was sent. The sum needs the lengths only, not the data.
--
-- $1 id of the run, $2 first seq, $3 size of the page in bytes, {limit} number of events. {limit}
-- is written into the statement, because the value of a parameter is unknown to a generic plan,
-- which would then be made for a tenth of the table.
SELECT page.seq, page.position, page.token, page.time, page.kind, page.owner, page.data
FROM tapestore.runs LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT e.seq, CASE WHEN e.position < b.safe THEN e.position ELSE 0 END AS position, e.token, e.time, e.kind, e.owner, e.data,
			sum(octet_length(e.data)) OVER (ORDER BY e.seq) - octet_length(e.data) AS before
		FROM (
			SELECT * FROM tapestore.events WHERE run = runs.no AND seq >= $2::bigint ORDER BY seq LIMIT {limit}
		) e, (
			SELECT position_base + (greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint - xid_base, 0) << 14) AS safe
			FROM tapestore.store
		) b
	) sized WHERE before <= $3::bigint
) page ON true
WHERE runs.id = $1::bytea AND NOT runs.purged
ORDER BY page.seq
