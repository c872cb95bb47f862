-- runs_scan returns the ids of the runs that follow an id, in the order of the ids.
--
-- ?1 id after which the page begins, ?2 number of runs
SELECT id FROM runs WHERE id > ?1 AND purged = 0 ORDER BY id LIMIT ?2
