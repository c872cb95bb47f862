-- records_page returns the records of a run with a prefix, in the order of their keys.
--
-- ?1 number of the run, ?2 prefix, ?3 and ?4 the first key behind the prefix or NULL, ?5 the key
-- after which the page begins, ?6 number of records
SELECT records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM records
WHERE run = ? AND key >= ? AND (? IS NULL OR key < ?) AND key > ?
ORDER BY key
LIMIT ?
