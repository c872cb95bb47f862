-- run_head returns the row of a run for a write, also that of a purged run.
--
-- ?1 id of the run
SELECT runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted
FROM runs
WHERE runs.id = ?
