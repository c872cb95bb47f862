-- index_page returns the entries of an index of records in ascending order: the columns of the
-- order, then the id of the run and the record. The first columns are those of the order, o1 to o4.
-- The upper bound is STABLE within the statement; otherwise no index could use it. A page ends
-- where its size exceeds the limit in bytes. The server computes the end, because the client would
-- have to read everything that was sent. The sum needs the lengths only, not the data.
--
-- Parts: newest, in descending order, down to a lower bound; heads, with the head and the summary of
-- the run of each entry, which count towards the size of the page.
--
-- $1 index, $2 upper bound or NULL for the present time, $3 to $6 the cursor behind which the page
-- begins: time of the entry, time of the write, number of the run, key; $7 size of the page in
-- bytes, $8 lower bound (only for newest), {limit} number of entries; see journal_page
SELECT * FROM (
	SELECT p.at AS o1, p.written AS o2, p.run AS o3, p.key AS o4, runs.id,
		-- if heads
		runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		summary.version, summary.value, summary.created_seq, summary.created, summary.updated_seq, summary.updated,
		summary.created_token, summary.updated_token,
		-- end
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(octet_length(records.value)
			+ coalesce(octet_length(summary.value), 0) -- if heads
		) OVER (ORDER BY
			p.at, p.written, p.run, p.key -- if not newest
			p.at DESC, p.written DESC, p.run DESC, p.key DESC -- if newest
		) - (octet_length(records.value)
			+ coalesce(octet_length(summary.value), 0) -- if heads
		) AS before
	FROM (
		SELECT * FROM tapestore.places p
		WHERE p.name = $1::bytea AND p.at <= coalesce($2::timestamptz, statement_timestamp())
			AND (p.at, p.written, p.run, p.key) > ($3::timestamptz, $4::timestamptz, $5::bigint, $6::bytea) -- if not newest
			AND (p.at, p.written, p.run, p.key) < ($3::timestamptz, $4::timestamptz, $5::bigint, $6::bytea) AND p.at >= $8::timestamptz -- if newest
			AND (SELECT true FROM tapestore.runs WHERE runs.no = p.run) -- of a purged run there may be some left
		ORDER BY p.at, p.written, p.run, p.key LIMIT {limit} -- if not newest
		ORDER BY p.at DESC, p.written DESC, p.run DESC, p.key DESC LIMIT {limit} -- if newest
	) p
		JOIN tapestore.runs ON runs.no = p.run
		JOIN tapestore.records ON records.run = p.run AND records.key = p.key
		LEFT JOIN tapestore.records AS summary ON summary.run = runs.no AND summary.key = 'run'::bytea -- if heads
) sized
WHERE before <= $7::bigint
ORDER BY o1, o2, o3, o4 -- if not newest
ORDER BY o1 DESC, o2 DESC, o3 DESC, o4 DESC -- if newest
