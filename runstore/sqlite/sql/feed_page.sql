-- feed_page returns the events of all runs after a position, in the form of journal_page with the
-- id of the run before the data. With the part newest, it returns the newest events in descending
-- order, and takes no position.
--
-- ?1 position, ?2 number of events (newest: ?1)
SELECT CAST(events.pos || ' ' || events.seq || ' ' || events.time || ' ' || events.token || ' ' ||
	length(CAST(events.kind AS BLOB)) || ' ' || length(CAST(events.owner AS BLOB)) || ' ' || length(runs.id) || ' ' || kind || events.owner || runs.id || data AS BLOB)
FROM events CROSS JOIN runs ON runs.no = events.run
WHERE events.pos > ? -- if not newest
ORDER BY events.pos -- if not newest
ORDER BY events.pos DESC -- if newest
LIMIT ?
