-- index_page_heads_back returns the entries of an index of records in descending order; see
-- index_page_heads.
--
-- @name index, @until upper bound or NULL for the present time, @from lower bound, @o1 to @o3, @run
-- and @key the cursor before which the page begins: time of the entry, time of the write, hash and
-- id of the run, key; @limit number of entries
SELECT q.O1, q.O2, q.O3, q.Run, q.Key, q.Purged,
	v.Version, v.CreatedSeq, v.CreatedTime, v.UpdatedSeq, v.UpdatedTime, v.CreatedToken, v.UpdatedToken,
	IF(LENGTH(v.Value) = 0, w.Value, v.Value) AS Value,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.GrantId, h.Owner, h.Reactor,
		h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
		h.Unlisted, h.HeldUntil, h.VersionFloor, h.VersionTop, h.CallerWrites, h.OtherWrites, h.Seen, h.Purging) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime,
		k.CreatedToken, k.UpdatedToken, k.PlaceNames, k.PlaceTimes
		FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue
FROM (
	SELECT q.*, p.Run IS NOT NULL AS Purged
	FROM (
		SELECT q.*
		FROM UNNEST(GENERATE_ARRAY(0, 8 - 1)) AS one_shard, UNNEST(ARRAY(
			SELECT AS STRUCT q.Due AS O1, q.UpdatedTime AS O2, q.RunHash AS O3, q.Run, q.Key, q.Shard
			FROM Queue AS q
			WHERE q.Name = @name AND q.Shard = one_shard AND q.Due <= COALESCE(@until, CURRENT_TIMESTAMP()) AND q.Due >= @from AND q.Due <= @o1
				AND (q.Due < @o1 OR (q.UpdatedTime < @o2 OR (q.UpdatedTime = @o2 AND (q.RunHash < @o3 OR (q.RunHash = @o3
					AND (q.Run < @run OR (q.Run = @run AND q.Key < @key)))))))
			ORDER BY q.Due DESC, q.UpdatedTime DESC, q.RunHash DESC, q.Run DESC, q.Key DESC LIMIT @limit
		)) AS q
		ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC LIMIT @limit
	) AS q
	LEFT JOIN (
		SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurged} AS p WHERE p.Purging IS NOT NULL
	) AS p ON p.Run = q.Run
	ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC
) AS q
JOIN Queue AS v ON v.Name = @name AND v.Shard = q.Shard AND v.Due = q.O1 AND v.UpdatedTime = q.O2 AND v.RunHash = q.O3
	AND v.Run = q.Run AND v.Key = q.Key
LEFT JOIN Records AS w ON LENGTH(v.Value) = 0 AND w.RunHash = q.O3 AND w.Run = q.Run AND w.Key = q.Key
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'
ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC
