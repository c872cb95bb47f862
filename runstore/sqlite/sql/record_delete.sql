-- record_delete deletes a record and returns its version and the number of its index entries.
--
-- ?1 number of the run, ?2 key
DELETE FROM records WHERE run = ? AND key = ? RETURNING version, places
