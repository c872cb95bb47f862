-- feed_page_back returns the newest events of all runs in descending order; see feed_page.
--
-- ?1 number of events
SELECT CAST(events.pos || ' ' || events.seq || ' ' || events.time || ' ' || events.token || ' ' ||
	length(CAST(events.kind AS BLOB)) || ' ' || length(CAST(events.owner AS BLOB)) || ' ' || length(runs.id) || ' ' || kind || events.owner || runs.id || data AS BLOB)
FROM events CROSS JOIN runs ON runs.no = events.run
ORDER BY events.pos DESC
LIMIT ?
