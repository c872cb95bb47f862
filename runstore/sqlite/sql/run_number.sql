-- run_number returns the number of a run, under which its other rows are found.
--
-- ?1 id of the run
SELECT no FROM runs WHERE id = ? AND purged = 0
