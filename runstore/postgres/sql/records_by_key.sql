-- records_by_key returns the records of a run under some keys, or one row of NULLs if there are
-- none. It returns no row if there is no run.
--
-- $1 id of the run, $2 keys
SELECT records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM tapestore.runs LEFT JOIN tapestore.records ON records.run = runs.no AND records.key = ANY ($2::bytea[])
WHERE runs.id = $1::bytea AND NOT runs.purged
ORDER BY records.key
