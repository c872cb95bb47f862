-- records_placed returns the records of a run in the order of their keys, with their index entries as
-- JSON, and with the version above which new records of the run begin. One statement reads all, so
-- they are of one state. Without a record their columns are NULL. It returns no row if there is no
-- run.
--
-- ?1 id of the run, ?2 key after which the page begins, ?3 number of records
SELECT records.key, records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
	records.created_token, records.updated_token, runs.version_floor,
	CASE WHEN records.places > 0 THEN (
		SELECT json_group_array(json_object('name', hex(places.name), 'at', places.at))
		FROM places WHERE places.run = records.run AND places.key = records.key
	) END
FROM runs LEFT JOIN records ON records.run = runs.no AND records.key > ?2
WHERE runs.id = ?1 AND runs.purged = 0
ORDER BY records.key
LIMIT ?3
