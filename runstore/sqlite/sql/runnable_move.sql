-- runnable_move moves the entry of a run whose lease was renewed to the expiry of its current
-- grant. It computes the new time from the row as it is now, so a late move is still correct.
--
-- ?1 number of the run
UPDATE runs SET place = expires WHERE no = ? AND grant_state = 1 AND place < expires
