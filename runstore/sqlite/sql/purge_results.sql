-- purge_results deletes up to 64 results of a purged run.
--
-- ?1 former number of the run
DELETE FROM batches WHERE run = ?1 AND id IN (SELECT id FROM batches WHERE run = ?1 LIMIT 64)
