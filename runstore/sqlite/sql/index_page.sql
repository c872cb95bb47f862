-- index_page returns the entries of an index of records in ascending order: the four columns of the
-- order, then the id of the run and the record. With the part newest, the order is descending. With
-- the part heads, the head and the summary of the run, in the form of run_read, come before the
-- record.
--
-- ?1 index, ?2 upper bound (newest: lower bound), ?3 to ?6 the cursor after which the page begins:
-- time of the entry, time of the write, number of the run, key; ?7 number of entries. Times are in
-- microseconds.
SELECT p.at, p.written, p.run, p.key, runs.id,
-- if heads
	runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token,
-- end
	placed.key, placed.version, placed.value, placed.created_seq, placed.created, placed.updated_seq, placed.updated,
	placed.created_token, placed.updated_token
FROM places p
	CROSS JOIN runs ON runs.no = p.run
	CROSS JOIN records placed ON placed.run = p.run AND placed.key = p.key
	LEFT JOIN records ON records.run = runs.no AND records.key = x'72756e' -- if heads
-- if not newest
WHERE p.name = ? AND p.at <= ? AND (p.at, p.written, p.run, p.key) > (?, ?, ?, ?)
ORDER BY p.at, p.written, p.run, p.key
-- end
-- if newest
WHERE p.name = ? AND p.at >= ? AND (p.at, p.written, p.run, p.key) < (?, ?, ?, ?)
ORDER BY p.at DESC, p.written DESC, p.run DESC, p.key DESC
-- end
LIMIT ?
