-- purge_entries deletes up to 64 index entries of a purged run. Scans of queues pass over these
-- rows, so they are deleted first.
--
-- ?1 former number of the run
DELETE FROM places WHERE (name, at, written, run, key) IN
	(SELECT name, at, written, run, key FROM places INDEXED BY places_of_record WHERE run = ? LIMIT 64)
