-- feed_page_back returns the newest events of all runs in ascending order; see feed_page. It counts
-- the bytes of a page from its end.
--
-- $1 position above which the events are, $2 size of the page in bytes, {limit} number of events;
-- see journal_page
SELECT b.known, page.id, page.seq, page.position, page.token, page.time, page.kind, page.owner, page.data
FROM (
	SELECT position_base + (greatest(coalesce((SELECT min(x::text::bigint) FROM pg_snapshot_xip(pg_current_snapshot()) AS x
				WHERE x <> ALL (coalesce(nullif(current_setting('tape.strangers', true), ''), '{}')::xid8[])),
			pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - xid_base, 0) << 14) AS safe,
		greatest(position_base, last_purged, (SELECT max(position) FROM tapestore.events)) AS known
	FROM tapestore.store
) b LEFT JOIN LATERAL (
	SELECT *, sum(octet_length(e.data)) OVER (ORDER BY e.position DESC) - octet_length(e.data) AS after
	FROM (
		SELECT events.*, runs.id
		FROM tapestore.events JOIN tapestore.runs ON runs.no = events.run
		WHERE position > $1::bigint AND position < b.safe
		ORDER BY position DESC LIMIT {limit}
	) e
) page ON after <= $2::bigint
ORDER BY page.position
