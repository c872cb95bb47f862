-- run_read returns the head of a run and its summary record, whose key is 'run'. Without a summary
-- its columns are NULL.
--
-- $1 id of the run
SELECT runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
	runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
	runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
	records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM tapestore.runs LEFT JOIN tapestore.records ON records.run = runs.no AND records.key = 'run'::bytea
WHERE runs.id = $1::bytea AND NOT runs.purged
