-- entry_insert inserts an index entry of a record.
--
-- ?1 index, ?2 time of the entry, ?3 time of the write, ?4 number of the run, ?5 key. Times are in
-- microseconds.
INSERT INTO places (name, at, written, run, key) VALUES (?, ?, ?, ?, ?)
