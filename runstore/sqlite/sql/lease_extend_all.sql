-- lease_extend_all extends every live lease by the amount by which the store clock steps. The step is
-- no time without progress either.
--
-- ?1 amount in microseconds, ?2 present time in microseconds
UPDATE runs SET expires = expires + ?1, progressed = iif(max_stall > 0, progressed + ?1, progressed)
WHERE grant_state = 1 AND expires > ?2
