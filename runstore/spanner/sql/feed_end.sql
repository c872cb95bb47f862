-- feed_end returns the last rows of the feed that were committed in the last @seconds, in
-- descending order; see feed_page. Spanner may read that whole time range, so callers begin with a
-- short one. It is used only for the newest events and for a reader that may be ahead of the store.
--
-- @seconds length of the time range, @limit number of rows
SELECT e.Seq, q.Committed, q.Purged
FROM (
	SELECT q.*, p.Run IS NOT NULL AS Purged
	FROM (
		SELECT q.*
		FROM UNNEST(GENERATE_ARRAY(0, (SELECT COALESCE(s.FeedShards, 8) FROM Store AS s WHERE s.One = 1) - 1)) AS one_shard, UNNEST(ARRAY(
			SELECT AS STRUCT q.Run, q.Seq, q.Committed, q.Slot
			FROM Feed AS q
			WHERE q.Shard = one_shard AND q.Committed >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @seconds SECOND)
			ORDER BY q.Committed DESC, q.Slot DESC LIMIT @limit
		)) AS q
		ORDER BY q.Committed DESC, q.Slot DESC LIMIT @limit
	) AS q
	LEFT JOIN (
		SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurged} AS p WHERE p.Purging IS NOT NULL
	) AS p ON p.Run = q.Run
	ORDER BY q.Committed DESC, q.Slot DESC
) AS q
LEFT JOIN Events AS e ON e.RunHash = (CAST(CONCAT('0x', TO_HEX(SUBSTR(SHA256(q.Run), 1, 4))) AS INT64) << 32)
		| CAST(CONCAT('0x', TO_HEX(SUBSTR(SHA256(q.Run), 5, 4))) AS INT64)
	AND e.Run = q.Run AND e.Seq = q.Seq AND e.Committed = q.Committed
ORDER BY q.Committed DESC, q.Slot DESC
