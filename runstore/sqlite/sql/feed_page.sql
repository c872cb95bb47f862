-- feed_page returns the events of all runs after a position, in the form of journal_page with the
-- id of the run before the data, and NULL for an event of a purged run that is not deleted yet. With the
-- part newest, it returns the newest events in descending order, and takes no position. The page has no
-- limit: its reader skips the NULLs, of which there may be many, and looks at its context meanwhile.
--
-- ?1 position (newest: none)
SELECT CASE WHEN runs.no IS NOT NULL THEN CAST(events.pos || ' ' || events.seq || ' ' || events.time || ' ' || events.token || ' ' ||
	length(CAST(events.kind AS BLOB)) || ' ' || length(CAST(events.owner AS BLOB)) || ' ' || length(runs.id) || ' ' || kind || events.owner || runs.id || data AS BLOB) END
FROM events LEFT JOIN runs ON runs.no = events.run
WHERE events.pos > ? -- if not newest
ORDER BY events.pos -- if not newest
ORDER BY events.pos DESC -- if newest
LIMIT -1
