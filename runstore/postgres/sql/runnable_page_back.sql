-- runnable_page_back returns the runs that are due in descending order; see runnable_page.
--
-- $1 upper bound or NULL for the present time, $2 to $4 the cursor before which the page begins:
-- time of the entry, time of the creation, number of the run; $5 size of the page in bytes, $6
-- lower bound, {limit} number of runs; see journal_page
SELECT * FROM (
	SELECT runs.place AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id,
		runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY runs.place DESC, runs.created DESC, runs.no DESC) - coalesce(octet_length(records.value), 0) AS before
	FROM (
		SELECT * FROM tapestore.runs
		WHERE place <= coalesce($1::timestamptz, statement_timestamp())
			AND (place, created, no) < ($2::timestamptz, $3::timestamptz, $4::bigint) AND place >= $6::timestamptz
			AND NOT (grant_state = 1 AND expires > coalesce($1::timestamptz, statement_timestamp()))
		ORDER BY place DESC, created DESC, no DESC LIMIT {limit}
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
		AND (place, created, no) < ($2::timestamptz, $3::timestamptz, $4::bigint) AND place >= $6::timestamptz
	ORDER BY place DESC, created DESC, no DESC LIMIT {limit}
) first
HAVING bool_or(live)
ORDER BY o1 DESC, o2 DESC, o3 DESC
