-- runnable_page returns the runs that are due with their heads and summaries, in ascending order;
-- see runs_page. The column Held marks the runs whose leases were renewed; the caller drops them,
-- and moves their entries while the grant GrantId is current.
--
-- Parts: newest returns the runs in descending order.
--
-- @until upper bound or NULL for the present time, @from lower bound (only for newest, otherwise
-- the cursor is within it), @o1 to @o3 and @run the cursor behind which the page begins: time of
-- the entry, time of the creation, hash and id of the run; @limit number of runs
SELECT q.O1, q.O2, q.O3, q.Run,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.GrantId, h.Owner, h.Reactor,
		h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
		h.Unlisted) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime, k.CreatedToken, k.UpdatedToken
		FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue,
	h.GrantState = 1 AND h.Expires > COALESCE(@until, CURRENT_TIMESTAMP()) AS Held
FROM (
	SELECT q.*
	FROM UNNEST(GENERATE_ARRAY(0, 8 - 1)) AS one_shard, UNNEST(ARRAY(
		SELECT AS STRUCT q.Place AS O1, q.Created AS O2, q.RunHash AS O3, q.Run
		FROM Runs@{FORCE_INDEX=RunsPlaced} AS q
		WHERE q.Shard = one_shard AND q.Place IS NOT NULL AND q.Created IS NOT NULL AND q.Place <= COALESCE(@until, CURRENT_TIMESTAMP())
		-- if not newest
			AND q.Place >= @o1
			AND (q.Place > @o1 OR (q.Created > @o2 OR (q.Created = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))))
		ORDER BY q.Place, q.Created, q.RunHash, q.Run LIMIT @limit
		-- end
		-- if newest
			AND q.Place >= @from AND q.Place <= @o1
			AND (q.Place < @o1 OR (q.Created < @o2 OR (q.Created = @o2 AND (q.RunHash < @o3 OR (q.RunHash = @o3 AND q.Run < @run)))))
		ORDER BY q.Place DESC, q.Created DESC, q.RunHash DESC, q.Run DESC LIMIT @limit
		-- end
	)) AS q
	ORDER BY q.O1, q.O2, q.O3, q.Run LIMIT @limit -- if not newest
	ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC LIMIT @limit -- if newest
) AS q
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'
ORDER BY q.O1, q.O2, q.O3, q.Run -- if not newest
ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC -- if newest
