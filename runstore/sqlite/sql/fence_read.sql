-- fence_read returns what a fence is judged by.
--
-- ?1 id of the run
SELECT token, grant_id, grant_state, owner, reactor, strict, expires, (SELECT epoch FROM store) FROM runs WHERE id = ?
