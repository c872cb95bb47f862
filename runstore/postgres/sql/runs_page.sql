-- runs_page returns the listed runs with their heads and summaries, in ascending order of their
-- creation. The first columns are those of the order, o1 to o4. The upper bound is STABLE within
-- the statement; otherwise no index could use it. A page ends where its size exceeds the limit in
-- bytes. The server computes the end, because the client would have to read everything that was
-- sent. The sum needs the lengths only, not the data.
--
-- Part: newest, in descending order, down to a lower bound.
--
-- $1 upper bound or NULL for the present time, $2 and $3 the cursor behind which the page begins:
-- time of the creation, number of the run; $4 size of the page in bytes, $5 lower bound (only for
-- newest), {limit} number of runs; see journal_page
SELECT * FROM (
	SELECT runs.created AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id,
		runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY
			runs.created, runs.no -- if not newest
			runs.created DESC, runs.no DESC -- if newest
		) - coalesce(octet_length(records.value), 0) AS before
	FROM (
		SELECT * FROM tapestore.runs
		WHERE NOT purged AND NOT unlisted AND created <= coalesce($1::timestamptz, statement_timestamp())
			AND (created, no) > ($2::timestamptz, $3::bigint) -- if not newest
			AND (created, no) < ($2::timestamptz, $3::bigint) AND created >= $5::timestamptz -- if newest
		ORDER BY created, no LIMIT {limit} -- if not newest
		ORDER BY created DESC, no DESC LIMIT {limit} -- if newest
	) runs LEFT JOIN tapestore.records ON records.run = runs.no AND records.key = 'run'::bytea
) sized
WHERE before <= $4::bigint
ORDER BY o1, o3 -- if not newest
ORDER BY o1 DESC, o3 DESC -- if newest
