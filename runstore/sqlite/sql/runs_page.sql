-- runs_page returns the listed runs in ascending order of their creation: four columns of the
-- order, as index_page has them, then the id, the head and the summary of the run. With the part
-- newest, the order is descending.
--
-- ?1 upper bound (newest: lower bound), ?2 and ?3 the cursor after which the page begins: time of
-- the creation, number of the run; ?4 number of runs. Times are in microseconds.
SELECT runs.created, 0, runs.no, x'', runs.id,
	runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM runs INDEXED BY runs_created
	LEFT JOIN records ON records.run = runs.no AND records.key = x'72756e'
WHERE runs.purged = 0 AND runs.unlisted = 0
-- if not newest
	AND runs.created <= ? AND (runs.created, runs.no) > (?, ?)
ORDER BY runs.created, runs.no
-- end
-- if newest
	AND runs.created >= ? AND (runs.created, runs.no) < (?, ?)
ORDER BY runs.created DESC, runs.no DESC
-- end
LIMIT ?
