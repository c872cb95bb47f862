-- runnable_page returns the runs that are due with their heads and summaries, in ascending order;
-- see runs_page. The column place of runs is the run's key in the index of runnable runs.
--
-- Part: newest, in descending order, down to a lower bound.
--
-- The page skips runs whose index entries are due although their leases are live, because they were
-- renewed. If the first entries, as many as a page has, contain a skipped run, the last part
-- returns the place of the first such run, in a row without an id. If they contain none, the page
-- skipped none; see runnable_move.
--
-- $1 upper bound or NULL for the present time, $2 to $4 the cursor behind which the page begins:
-- time of the entry, time of the creation, number of the run; $5 size of the page in bytes, $6
-- lower bound (only for newest), {limit} number of runs; see journal_page
SELECT * FROM (
	SELECT runs.place AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id,
		runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY
			runs.place, runs.created, runs.no -- if not newest
			runs.place DESC, runs.created DESC, runs.no DESC -- if newest
		) - coalesce(octet_length(records.value), 0) AS before
	FROM (
		SELECT * FROM tapestore.runs
		WHERE place <= coalesce($1::timestamptz, statement_timestamp())
			AND (place, created, no) > ($2::timestamptz, $3::timestamptz, $4::bigint) -- if not newest
			AND (place, created, no) < ($2::timestamptz, $3::timestamptz, $4::bigint) AND place >= $6::timestamptz -- if newest
			AND NOT (grant_state = 1 AND expires > coalesce($1::timestamptz, statement_timestamp()))
		ORDER BY place, created, no LIMIT {limit} -- if not newest
		ORDER BY place DESC, created DESC, no DESC LIMIT {limit} -- if newest
	) runs LEFT JOIN tapestore.records ON records.run = runs.no AND records.key = 'run'::bytea
) sized
WHERE before <= $5::bigint
UNION ALL
SELECT min(place) FILTER (WHERE live), NULL, 0, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (
	SELECT place, (grant_state = 1 AND expires > coalesce($1::timestamptz, statement_timestamp())) AS live
	FROM tapestore.runs
	WHERE place <= coalesce($1::timestamptz, statement_timestamp())
		AND (place, created, no) > ($2::timestamptz, $3::timestamptz, $4::bigint) -- if not newest
		AND (place, created, no) < ($2::timestamptz, $3::timestamptz, $4::bigint) AND place >= $6::timestamptz -- if newest
	ORDER BY place, created, no LIMIT {limit} -- if not newest
	ORDER BY place DESC, created DESC, no DESC LIMIT {limit} -- if newest
) first
HAVING bool_or(live)
ORDER BY o1, o2, o3 -- if not newest
ORDER BY o1 DESC, o2 DESC, o3 DESC -- if newest
