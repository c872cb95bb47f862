-- index_page returns the entries of an index of records in ascending order. It reads the keys of
-- the first entries of each shard in index order, sorts these and fetches the contents of the first
-- @limit by key. The table Queue holds the contents of its entries, except for some values (see
-- maxInlineEntries).
--
-- Parts: newest returns the entries in descending order; heads returns the head and the summary of
-- the run of each entry, too.
--
-- The column Purged marks the rows of runs that are being purged; the caller drops these few rows.
-- If the statement did, a page of nothing else would look like the end. The index RunsPurged holds
-- only these runs, so it is almost always empty.
--
-- @name index, @until upper bound or NULL for the present time, @from lower bound (only for newest,
-- otherwise the cursor is within it), @o1 to @o3, @run and @key the cursor behind which the page
-- begins: time of the entry, time of the write, hash and id of the run, key; @limit number of
-- entries
SELECT q.O1, q.O2, q.O3, q.Run, q.Key, q.Purged,
	v.Version, v.CreatedSeq, v.CreatedTime, v.UpdatedSeq, v.UpdatedTime, v.CreatedToken, v.UpdatedToken,
	IF(LENGTH(v.Value) = 0, w.Value, v.Value) AS Value
	-- if heads
	, ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.Owner, h.Reactor,
		h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
		h.Unlisted) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime, k.CreatedToken, k.UpdatedToken
		FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue
	-- end
FROM (
	SELECT q.*, p.Run IS NOT NULL AS Purged
	FROM (
		SELECT q.*
		FROM UNNEST(GENERATE_ARRAY(0, 8 - 1)) AS one_shard, UNNEST(ARRAY(
			SELECT AS STRUCT q.Due AS O1, q.UpdatedTime AS O2, q.RunHash AS O3, q.Run, q.Key, q.Shard
			FROM Queue AS q
			WHERE q.Name = @name AND q.Shard = one_shard AND q.Due <= COALESCE(@until, CURRENT_TIMESTAMP())
			-- if not newest
				AND q.Due >= @o1
				AND (q.Due > @o1 OR (q.UpdatedTime > @o2 OR (q.UpdatedTime = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3
					AND (q.Run > @run OR (q.Run = @run AND q.Key > @key)))))))
			ORDER BY q.Due, q.UpdatedTime, q.RunHash, q.Run, q.Key LIMIT @limit
			-- end
			-- if newest
				AND q.Due >= @from AND q.Due <= @o1
				AND (q.Due < @o1 OR (q.UpdatedTime < @o2 OR (q.UpdatedTime = @o2 AND (q.RunHash < @o3 OR (q.RunHash = @o3
					AND (q.Run < @run OR (q.Run = @run AND q.Key < @key)))))))
			ORDER BY q.Due DESC, q.UpdatedTime DESC, q.RunHash DESC, q.Run DESC, q.Key DESC LIMIT @limit
			-- end
		)) AS q
		ORDER BY q.O1, q.O2, q.O3, q.Run, q.Key LIMIT @limit -- if not newest
		ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC LIMIT @limit -- if newest
	) AS q
	LEFT JOIN (
		SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurged} AS p WHERE p.Purging IS NOT NULL
	) AS p ON p.Run = q.Run
	ORDER BY q.O1, q.O2, q.O3, q.Run, q.Key -- if not newest
	ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC -- if newest
) AS q
JOIN Queue AS v ON v.Name = @name AND v.Shard = q.Shard AND v.Due = q.O1 AND v.UpdatedTime = q.O2 AND v.RunHash = q.O3
	AND v.Run = q.Run AND v.Key = q.Key
LEFT JOIN Records AS w ON LENGTH(v.Value) = 0 AND w.RunHash = q.O3 AND w.Run = q.Run AND w.Key = q.Key
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run -- if heads
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run' -- if heads
ORDER BY q.O1, q.O2, q.O3, q.Run, q.Key -- if not newest
ORDER BY q.O1 DESC, q.O2 DESC, q.O3 DESC, q.Run DESC, q.Key DESC -- if newest
