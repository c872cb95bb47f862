-- index_page_back returns the entries of an index of records in descending order; see index_page.
--
-- ?1 index, ?2 lower bound, ?3 to ?6 the cursor before which the page begins: time of the entry,
-- time of the write, number of the run, key; ?7 number of entries. Times are in microseconds.
SELECT p.at, p.written, p.run, p.key, runs.id,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM places p
	CROSS JOIN runs ON runs.no = p.run
	CROSS JOIN records ON records.run = p.run AND records.key = p.key
WHERE p.name = ? AND p.at >= ? AND (p.at, p.written, p.run, p.key) < (?, ?, ?, ?)
ORDER BY p.at DESC, p.written DESC, p.run DESC, p.key DESC
LIMIT ?
