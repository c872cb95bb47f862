-- runs_page_back returns the listed runs in descending order of their creation; see runs_page.
--
-- $1 upper bound or NULL for the present time, $2 and $3 the cursor before which the page begins:
-- time of the creation, number of the run; $4 size of the page in bytes, $5 lower bound, {limit}
-- number of runs; see journal_page
SELECT * FROM (
	SELECT runs.created AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id,
		runs.status, runs.created, runs.runnable, runs.last_seq, runs.token, runs.expires, runs.grant_state,
		runs.is_strict, runs.grant_id, runs.owner, runs.reactor, runs.preempted_from, runs.preempt_reason,
		runs.ttl, runs.granted, runs.renewed, runs.max_stall, runs.progressed, runs.former_end, runs.unlisted,
		records.version, records.value, records.created_seq, records.created, records.updated_seq, records.updated,
		records.created_token, records.updated_token,
		sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY runs.created DESC, runs.no DESC) - coalesce(octet_length(records.value), 0) AS before
	FROM (
		SELECT * FROM tapestore.runs
		WHERE NOT purged AND NOT unlisted AND created <= coalesce($1::timestamptz, statement_timestamp())
			AND (created, no) < ($2::timestamptz, $3::bigint) AND created >= $5::timestamptz
		ORDER BY created DESC, no DESC LIMIT {limit}
	) runs LEFT JOIN tapestore.records ON records.run = runs.no AND records.key = 'run'::bytea
) sized
WHERE before <= $4::bigint
ORDER BY o1 DESC, o3 DESC
