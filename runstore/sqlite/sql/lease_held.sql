-- lease_held reports whether a run has a current grant, expired or not.
--
-- ?1 id of the run
SELECT EXISTS (SELECT 1 FROM runs WHERE id = ? AND purged = 0 AND grant_state = 1)
