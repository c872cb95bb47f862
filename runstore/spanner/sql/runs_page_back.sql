-- runs_page_back returns the listed runs in descending order of their creation; see runs_page.
--
-- @until upper bound or NULL for the present time, @from lower bound, @o1, @o3 and @run the cursor
-- before which the page begins: time of the creation, hash and id of the run; @limit number of runs
SELECT q.O1, q.O2, q.O3, q.Run,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.GrantId, h.Owner, h.Reactor,
		h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
		h.Unlisted, h.HeldUntil, h.VersionFloor, h.VersionTop, h.CallerWrites, h.OtherWrites, h.Seen, h.Purging) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime,
		k.CreatedToken, k.UpdatedToken, k.PlaceNames, k.PlaceTimes
		FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue,
	h.GrantState = 1 AND h.Expires > COALESCE(@until, CURRENT_TIMESTAMP()) AS Held
FROM (
	SELECT q.*, p.Run IS NOT NULL AS Purged
	FROM (
		SELECT q.*
		FROM UNNEST(GENERATE_ARRAY(0, 8 - 1)) AS one_shard, UNNEST(ARRAY(
			SELECT AS STRUCT q.Listed AS O1, q.Listed AS O2, q.RunHash AS O3, q.Run
			FROM Runs@{FORCE_INDEX=RunsListedNewest} AS q
			WHERE q.Shard = one_shard AND q.Listed IS NOT NULL AND q.Listed <= COALESCE(@until, CURRENT_TIMESTAMP()) AND q.Listed >= @from AND q.Listed <= @o1
				AND (q.Listed < @o1 OR (q.RunHash < @o3 OR (q.RunHash = @o3 AND q.Run < @run)))
			ORDER BY q.Listed DESC, q.RunHash DESC, q.Run DESC LIMIT @limit
		)) AS q
		ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC LIMIT @limit
	) AS q
	LEFT JOIN (
		SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurged} AS p WHERE p.Purging IS NOT NULL
	) AS p ON p.Run = q.Run
	ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC
) AS q
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'
ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC
