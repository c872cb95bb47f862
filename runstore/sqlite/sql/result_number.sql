-- result_number returns the number of the next result of a run.
--
-- ?1 number of the run
UPDATE runs SET batches = batches + 1 WHERE no = ? RETURNING batches
