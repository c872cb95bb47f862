-- run_read returns a run with its summary record, whose key is 'run'. Without a summary its columns
-- are NULL.
--
-- ?1 id of the run
SELECT runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted,
	records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM runs LEFT JOIN records ON records.run = runs.no AND records.key = x'72756e'
WHERE runs.id = ? AND runs.purged = 0
