-- record_version returns the version of a record, for a guard.
--
-- ?1 number of the run, ?2 key
SELECT version FROM records WHERE run = ? AND key = ?
