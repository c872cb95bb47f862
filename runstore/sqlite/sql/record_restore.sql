-- record_restore puts a record as another store had it, and returns how many index entries it had
-- here.
--
-- ?1 number of the run, ?2 key, ?3 value, ?4 version, ?5 seq, ?6 time and ?7 token of its creation,
-- ?8 seq, ?9 time and ?10 token of its last change. Times are in microseconds.
INSERT INTO records (run, key, value, version, created_seq, created, created_token, updated_seq, updated, updated_token, places)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0)
ON CONFLICT (run, key) DO UPDATE SET value = excluded.value, version = excluded.version, created_seq = excluded.created_seq,
	created = excluded.created, created_token = excluded.created_token, updated_seq = excluded.updated_seq,
	updated = excluded.updated, updated_token = excluded.updated_token
RETURNING places
