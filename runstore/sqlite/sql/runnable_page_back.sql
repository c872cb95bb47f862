-- runnable_page_back returns the runs that are due in descending order; see runnable_page.
--
-- ?1 lower bound, ?2 to ?4 the cursor before which the page begins: time of the entry, time of the
-- creation, number of the run. Times are in microseconds.
SELECT runs.place, runs.created, runs.no, x'', runs.id,
	runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM runs INDEXED BY runs_runnable
	LEFT JOIN records ON records.run = runs.no AND records.key = x'72756e'
WHERE runs.place IS NOT NULL AND runs.place >= ? AND (runs.place, runs.created, runs.no) < (?, ?, ?)
ORDER BY runs.place DESC, runs.created DESC, runs.no DESC
LIMIT -1
