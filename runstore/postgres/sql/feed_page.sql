-- feed_page returns the events of all runs after a position, or one row without an event, in
-- ascending order. Its first column is the highest known position. It runs in a transaction after
-- feed_strangers, and shows the events below the oldest open transaction that feed_strangers has not
-- found; without feed_strangers it ignores none. A page ends where its size exceeds the limit in
-- bytes. The server computes the end, because the client would have to read everything that was
-- sent. The sum needs the lengths only, not the data.
--
-- The ids come from a subquery, not from a join. The server assumes that the range of positions
-- contains 0.5 % of the table; if that is less than a page, it would join and sort all events after
-- $1, however many there are. OFFSET 0 has the subquery executed once for each event.
--
-- Part: newest, the last events of all, as many as fit into a page.
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
	SELECT *, sum(octet_length(e.data)) OVER (ORDER BY e.position) - octet_length(e.data) AS before -- if not newest
	SELECT *, sum(octet_length(e.data)) OVER (ORDER BY e.position DESC) - octet_length(e.data) AS before -- if newest
	FROM (
		SELECT * FROM (
			SELECT *, (SELECT runs.id FROM tapestore.runs WHERE runs.no = events.run) AS id -- NULL for what a purge left
			FROM tapestore.events
			WHERE position > $1::bigint AND position < b.safe
			ORDER BY position OFFSET 0 -- if not newest
			ORDER BY position DESC OFFSET 0 -- if newest
		) found
		WHERE id IS NOT NULL
		ORDER BY position LIMIT {limit} -- if not newest
		ORDER BY position DESC LIMIT {limit} -- if newest
	) e
) page ON before <= $2::bigint
ORDER BY page.position
