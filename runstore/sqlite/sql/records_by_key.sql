-- records_by_key returns the record of a run under a key.
--
-- ?1 number of the run, ?2 key
SELECT records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM records
WHERE run = ? AND key = ?
