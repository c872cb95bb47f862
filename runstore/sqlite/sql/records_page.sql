-- records_page returns the records of a run with a prefix, in the order of their keys.
--
-- ?1 number of the run, ?2 the first key that the page may have, ?3 the first key behind the page, ?4 number
-- of records. ?2 and ?3 are never NULL: an alternative to a comparison would be a filter, behind which all
-- later keys of the run are read, and of two lower bounds SQLite searches for one only.
SELECT records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token
FROM records
WHERE run = ? AND key >= ? AND key < ?
ORDER BY key
LIMIT ?
