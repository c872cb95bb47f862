-- run_update writes the row of a run back, except the columns that an append maintains.
--
-- ?1 purged, ?2 status, ?3 created, ?4 runnable, ?5 entry in the index of runnable runs, ?6 last
-- seq, ?7 version floor, ?8 token, ?9 grant id, ?10 grant state, ?11 owner, ?12 reactor, ?13
-- strict, ?14 expiry, ?15 preempted owner, ?16 reason of the preemption, ?17 TTL, ?18 granted, ?19
-- renewed, ?20 longest time without progress, ?21 progressed, ?22 end of the former grant, ?23
-- unlisted, ?24 number of the run. Times and durations are in microseconds.
UPDATE runs SET purged = ?, status = ?, created = ?, runnable = ?, place = ?, last_seq = ?, version_floor = ?,
	token = ?, grant_id = ?, grant_state = ?, owner = ?, reactor = ?, strict = ?, expires = ?,
	preempted_from = ?, preempt_reason = ?, ttl = ?, granted = ?, renewed = ?, max_stall = ?, progressed = ?,
	former_end = ?, unlisted = ?
WHERE no = ?
