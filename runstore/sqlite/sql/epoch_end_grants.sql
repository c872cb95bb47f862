-- epoch_end_grants ends every current grant.
UPDATE runs SET grant_state = 3, place = iif(purged, NULL, runnable), owner = x'', reactor = x'', strict = 0,
	preempted_from = x'', preempt_reason = x''
WHERE grant_state = 1
