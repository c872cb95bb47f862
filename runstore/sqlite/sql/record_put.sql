-- record_put inserts or replaces a record and returns its version and the number of its index
-- entries. A new record starts above every version that a deleted record of the run had.
--
-- ?1 number of the run, ?2 key, ?3 value, ?4 seq of the event that explains the change, ?5 time in
-- microseconds, ?6 token
INSERT INTO records (run, key, version, value, created_seq, created, created_token, updated_seq, updated, updated_token, places)
VALUES (?1, ?2, (SELECT version_floor + 1 FROM runs WHERE no = ?1), ?3, ?4, ?5, ?6, ?4, ?5, ?6, 0)
ON CONFLICT (run, key) DO UPDATE SET version = version + 1, value = excluded.value,
	updated_seq = excluded.updated_seq, updated = excluded.updated, updated_token = excluded.updated_token
RETURNING version, places
