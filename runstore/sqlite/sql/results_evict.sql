-- results_evict deletes the oldest results of a run.
--
-- ?1 number of the run, ?2 the highest number to delete
DELETE FROM batches WHERE run = ? AND no <= ?
