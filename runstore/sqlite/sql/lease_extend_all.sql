-- lease_extend_all extends every live lease by the amount by which the store clock steps.
--
-- ?1 amount in microseconds, ?2 present time in microseconds
UPDATE runs SET expires = expires + ? WHERE grant_state = 1 AND expires > ?
