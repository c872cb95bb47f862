-- records_placed is records_page for all records of a run, with their index entries, and with the
-- version above which new records of the run begin. One statement reads all, so they are of one
-- state. Without a record their columns are NULL. It returns no row if there is no run.
--
-- $1 id of the run, $2 the key after which the page begins, $3 size of the page in bytes, {limit}
-- number of records; see journal_page
SELECT runs.version_floor, page.key, page.version, page.value, page.created_seq, page.created, page.updated_seq, page.updated,
	page.created_token, page.updated_token,
	CASE WHEN page.places > 0 THEN ARRAY(SELECT p.name FROM tapestore.places AS p WHERE p.run = runs.no AND p.key = page.key ORDER BY p.name) END,
	CASE WHEN page.places > 0 THEN ARRAY(SELECT p.at FROM tapestore.places AS p WHERE p.run = runs.no AND p.key = page.key ORDER BY p.name) END
FROM tapestore.runs LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT r.*, sum(octet_length(r.value)) OVER (ORDER BY r.key) - octet_length(r.value) AS before
		FROM (
			SELECT * FROM tapestore.records WHERE run = runs.no AND key > $2::bytea ORDER BY key LIMIT {limit}
		) r
	) sized WHERE before <= $3::bigint
) page ON true
WHERE runs.id = $1::bytea AND NOT runs.purged
ORDER BY page.key
