-- runnable_page returns the runs that are due in ascending order: four columns of the order, as
-- index_page has them, then the id, the head and the summary of the run. With the part newest, the
-- order is descending. The page has no limit, because its reader skips runs whose leases were
-- renewed.
--
-- ?1 upper bound (newest: lower bound), ?2 to ?4 the cursor after which the page begins: time of the
-- entry, time of the creation, number of the run. Times are in microseconds.
SELECT runs.place, runs.created, runs.no, x'', runs.id,
	runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM runs INDEXED BY runs_runnable
	LEFT JOIN records ON records.run = runs.no AND records.key = x'72756e'
WHERE runs.place IS NOT NULL
-- if not newest
	AND runs.place <= ? AND (runs.place, runs.created, runs.no) > (?, ?, ?)
ORDER BY runs.place, runs.created, runs.no
-- end
-- if newest
	AND runs.place >= ? AND (runs.place, runs.created, runs.no) < (?, ?, ?)
ORDER BY runs.place DESC, runs.created DESC, runs.no DESC
-- end
LIMIT -1
