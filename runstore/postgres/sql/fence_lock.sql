-- fence_lock locks the row of a run until the end of the transaction, against takeovers, releases
-- and purges, and returns its head.
--
-- $1 id of the run
SELECT runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
	runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
	runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted
FROM tapestore.runs WHERE runs.id = $1 AND NOT runs.purged FOR NO KEY UPDATE
