-- entries_delete deletes all index entries of a record.
--
-- ?1 number of the run, ?2 key
DELETE FROM places WHERE run = ? AND key = ?
