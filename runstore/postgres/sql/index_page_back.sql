-- index_page_back returns the entries of an index of records in descending order; see index_page.
--
-- $1 index, $2 upper bound or NULL for the present time, $3 to $6 the cursor before which the page
-- begins: time of the entry, time of the write, number of the run, key; $7 size of the page in
-- bytes, $8 lower bound, {limit} number of entries; see journal_page
SELECT * FROM (
	SELECT p.at AS o1, p.written AS o2, p.run AS o3, p.key AS o4, runs.id,
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(octet_length(records.value)) OVER (ORDER BY p.at DESC, p.written DESC, p.run DESC, p.key DESC) - (octet_length(records.value)) AS before
	FROM (
		SELECT * FROM tapestore.places p
		WHERE p.name = $1::bytea AND p.at <= coalesce($2::timestamptz, statement_timestamp())
			AND (p.at, p.written, p.run, p.key) < ($3::timestamptz, $4::timestamptz, $5::bigint, $6::bytea) AND p.at >= $8::timestamptz
			AND (SELECT true FROM tapestore.runs WHERE runs.no = p.run) -- of a purged run there may be some left
		ORDER BY p.at DESC, p.written DESC, p.run DESC, p.key DESC LIMIT {limit}
	) p
		JOIN tapestore.runs ON runs.no = p.run
		JOIN tapestore.records ON records.run = p.run AND records.key = p.key
) sized
WHERE before <= $7::bigint
ORDER BY o1 DESC, o2 DESC, o3 DESC, o4 DESC
