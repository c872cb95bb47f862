-- journal_page returns the events of a run at consecutive positions, each as one value, because the
-- driver allocates memory for each value of a row. The value begins with seven decimal numbers,
-- each followed by a space: position, seq, time in microseconds, token, and the lengths of kind,
-- owner and id of the run in bytes. Kind, owner and data follow; the id is left out, so its length
-- is 0.
--
-- ?1 first position, ?2 last position, ?3 number of the run
SELECT CAST(events.pos || ' ' || events.seq || ' ' || events.time || ' ' || events.token || ' ' ||
	length(CAST(events.kind AS BLOB)) || ' ' || length(CAST(events.owner AS BLOB)) || ' 0 ' || kind || owner || data AS BLOB)
FROM events
WHERE pos BETWEEN ? AND ? AND run = ?
ORDER BY pos
