-- runs_page returns the listed runs with their heads and summaries, in ascending order of their
-- creation; see index_page. The index of runs holds only columns that do not change with every
-- commit, so the statement joins Runs. A purge removes the run from the index in the same commit,
-- so no run that is being purged is on the page.
--
-- Parts: newest returns the runs in descending order.
--
-- @until upper bound or NULL for the present time, @from lower bound (only for newest, otherwise
-- the cursor is within it), @o1, @o3 and @run the cursor behind which the page begins: time of the
-- creation, hash and id of the run; @limit number of runs
SELECT q.O1, q.O2, q.O3, q.Run,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.Owner, h.Reactor,
		h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
		h.Unlisted) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime, k.CreatedToken, k.UpdatedToken
		FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue
FROM (
	SELECT q.*
	FROM UNNEST(GENERATE_ARRAY(0, 8 - 1)) AS one_shard, UNNEST(ARRAY(
		SELECT AS STRUCT q.Listed AS O1, q.Listed AS O2, q.RunHash AS O3, q.Run
		-- if not newest
		FROM Runs@{FORCE_INDEX=RunsListed} AS q
		WHERE q.Shard = one_shard AND q.Listed IS NOT NULL AND q.Listed <= COALESCE(@until, CURRENT_TIMESTAMP()) AND q.Listed >= @o1
			AND (q.Listed > @o1 OR (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))
		ORDER BY q.Listed, q.RunHash, q.Run LIMIT @limit
		-- end
		-- if newest
		FROM Runs@{FORCE_INDEX=RunsListedNewest} AS q
		WHERE q.Shard = one_shard AND q.Listed IS NOT NULL AND q.Listed <= COALESCE(@until, CURRENT_TIMESTAMP()) AND q.Listed >= @from AND q.Listed <= @o1
			AND (q.Listed < @o1 OR (q.RunHash < @o3 OR (q.RunHash = @o3 AND q.Run < @run)))
		ORDER BY q.Listed DESC, q.RunHash DESC, q.Run DESC LIMIT @limit
		-- end
	)) AS q
	ORDER BY q.O1, q.O2, q.O3, q.Run LIMIT @limit -- if not newest
	ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC LIMIT @limit -- if newest
) AS q
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'
ORDER BY q.O1, q.O2, q.O3, q.Run -- if not newest
ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC -- if newest
