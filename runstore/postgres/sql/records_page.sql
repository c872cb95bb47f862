-- records_page returns the records of a run with a prefix, in the order of their keys, or one row
-- of NULLs if there are none. It returns no row if there is no run. A page ends where its size
-- exceeds the limit in bytes. The server computes the end, because the client would have to read
-- everything that was sent. The sum needs the lengths only, not the data.
--
-- $1 id of the run, $2 the first key that the page may have, $3 the first key behind the prefix, $4 size of
-- the page in bytes, {limit} number of records; see journal_page. $2 and $3 are never NULL: an alternative
-- to a comparison would be a filter, behind which all later keys of the run are read.
SELECT page.key, page.version, page.value, page.created_seq, page.created, page.updated_seq, page.updated,
	page.created_token, page.updated_token
FROM tapestore.runs LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT r.*, sum(octet_length(r.value)) OVER (ORDER BY r.key) - octet_length(r.value) AS before
		FROM (
			SELECT * FROM tapestore.records
			WHERE run = runs.no AND key >= $2::bytea AND key < $3::bytea
			ORDER BY key LIMIT {limit}
		) r
	) sized WHERE before <= $4::bigint
) page ON true
WHERE runs.id = $1::bytea AND NOT runs.purged
ORDER BY page.key
