-- epoch_end_grants ends every current grant. For renewed see schema/0007_terms.sql.
--
-- ?1 present time in microseconds
UPDATE runs SET grant_state = 3, place = iif(purged, NULL, runnable), renewed = ?, strict = 0,
	preempted_from = x'', preempt_reason = x''
WHERE grant_state = 1
