-- result_read returns the stored result of a write that was applied before, as JSON.
--
-- ?1 id of the run, ?2 name of the result
SELECT batches.result
FROM batches JOIN runs ON runs.no = batches.run
WHERE runs.id = ? AND runs.purged = 0 AND batches.id = ?
