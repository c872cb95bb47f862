-- run_insert inserts the row of a run that has never existed, as that of a purged run.
--
-- ?1 id of the run
INSERT INTO runs (id, purged, status, created, runnable, last_seq, version_floor, token, grant_id, grant_state,
	owner, reactor, strict, expires, preempted_from, preempt_reason, tail_seq, tail)
VALUES (?, 1, 0, 0, NULL, 0, 0, 0, '', 0, x'', x'', 0, 0, x'', x'', 1, x'')
