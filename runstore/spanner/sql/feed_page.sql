-- feed_page returns a page of the feed: the next rows of every shard of Feed, each shard in key
-- order, of these the first @limit, and then the events of those rows. The page starts at the
-- beginning of the window of the reader's position, because ranks count from there.
--
-- The number of shards is read in the same statement as the rows, so a handle that was opened
-- before the feed grew misses no event.
--
-- Each row of the feed is joined with its event by the event's whole key. A row has no event if its
-- run was purged, even if there is a new run of that id: Committed distinguishes the events of the
-- two, because a purge and a creation both write the run's row and so cannot share a commit
-- timestamp. RunHash is computed from the id: the first eight bytes of its hash (keyOf), as a
-- signed number.
--
-- The column Purged marks the rows of runs that are being purged; the caller drops these few rows.
-- If the statement did, a page of nothing else would look like the end. The index RunsPurged holds
-- only these runs, so it is almost always empty.
--
-- Part: newest returns the last rows that were committed in the last @seconds and before @before, in
-- descending order and without the contents of the events. Spanner may read that whole time range, so
-- callers begin with a short one.
--
-- @committed begin of the window, @before and @seconds see newest, @limit number of rows
SELECT q.Run, e.Seq, q.Committed, e.Time, e.Token, e.Kind, e.Owner, e.Data, q.Purged -- if not newest
SELECT e.Seq, q.Committed, q.Purged -- if newest
FROM (
	SELECT q.*, p.Run IS NOT NULL AS Purged
	FROM (
		SELECT q.*
		FROM UNNEST(GENERATE_ARRAY(0, (SELECT COALESCE(s.FeedShards, 8) FROM Store AS s WHERE s.One = 1) - 1)) AS one_shard, UNNEST(ARRAY(
			SELECT AS STRUCT q.Shard, q.Committed, q.Slot, q.Run, q.Seq
			FROM Feed AS q
			-- if not newest
			WHERE q.Shard = one_shard AND q.Committed >= @committed
			ORDER BY q.Committed, q.Slot LIMIT @limit
			-- end
			-- if newest
			WHERE q.Shard = one_shard AND q.Committed < @before
				AND q.Committed >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @seconds SECOND)
			ORDER BY q.Committed DESC, q.Slot DESC LIMIT @limit
			-- end
		)) AS q
		ORDER BY q.Committed, q.Slot, q.Shard LIMIT @limit -- if not newest
		ORDER BY q.Committed DESC, q.Slot DESC, q.Shard DESC LIMIT @limit -- if newest
	) AS q
	LEFT JOIN (
		SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurged} AS p WHERE p.Purging IS NOT NULL
	) AS p ON p.Run = q.Run
	ORDER BY q.Committed, q.Slot, q.Shard -- if not newest
	ORDER BY q.Committed DESC, q.Slot DESC, q.Shard DESC -- if newest
) AS q
LEFT JOIN Events AS e ON e.RunHash = (CAST(CONCAT('0x', TO_HEX(SUBSTR(SHA256(q.Run), 1, 4))) AS INT64) << 32)
		| CAST(CONCAT('0x', TO_HEX(SUBSTR(SHA256(q.Run), 5, 4))) AS INT64)
	AND e.Run = q.Run AND e.Seq = q.Seq AND e.Committed = q.Committed
ORDER BY q.Committed, q.Slot, q.Shard -- if not newest
ORDER BY q.Committed DESC, q.Slot DESC, q.Shard DESC -- if newest
