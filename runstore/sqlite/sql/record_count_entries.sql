-- record_count_entries stores the number of index entries of a record.
--
-- ?1 number of entries, ?2 number of the run, ?3 key
UPDATE records SET places = ? WHERE run = ? AND key = ?
