-- terms_read returns the row of a run, as run_head does, and the terms of its former grants.
--
-- ?1 id of the run
SELECT runs.no, runs.id, runs.purged, runs.status, runs.created, runs.runnable, runs.last_seq, runs.version_floor,
	runs.token, runs.grant_id, runs.grant_state, runs.owner, runs.reactor, runs.strict, runs.expires,
	runs.preempted_from, runs.preempt_reason, runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed,
	runs.former_end, runs.unlisted, grants.terms
FROM runs LEFT JOIN grants ON grants.run = runs.no
WHERE runs.id = ? AND runs.purged = 0
