-- result_insert stores a result. A grant's id may be reused once the store no longer recognizes it:
-- the last result replaces the earlier one.
--
-- ?1 number of the run, ?2 name of the result, ?3 number of the result, ?4 result as JSON
INSERT OR REPLACE INTO batches (run, id, no, result) VALUES (?, ?, ?, ?)
