-- write_guard returns the state of a run that a write is decided on. All rows are read by their
-- whole keys. A write of several runs joins the statements of its runs with UNION ALL and replaces
-- the 0 of each name, and of the column Number, by the number of the run.
--
-- Parts: records reads the records of @keys; result reads the stored result of an id; epoch reads
-- what a grant needs, the former grants, their terms and the epoch. A statement names only the tables that are
-- needed: each costs a seek and makes another query plan.
--
-- @hash_0 hash of the run's id, @run_0 id of the run, @keys_0 keys of records, @callers_0 whether
-- the caller chose the id of the result, @id_0 id of the result, @kind_0 kind of the result, 'b'
-- for one of a batch, which earlier programs stored as NULL, @shard_0 shard of the run
SELECT CURRENT_TIMESTAMP() AS Now,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.GrantId, h.Owner, h.Reactor,
			h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
			h.Unlisted, h.HeldUntil, h.VersionFloor, h.VersionTop, h.CallerWrites, h.OtherWrites, h.Seen, h.Purging
			, h.FormerGrants, h.Terms, h.GrantEnded -- if epoch
		FROM Runs AS h
		WHERE h.RunHash = @hash_0 AND h.Run = @run_0) AS Head,
	-- if records
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime,
			k.CreatedToken, k.UpdatedToken, k.PlaceNames, k.PlaceTimes
		FROM Records AS k
		WHERE k.RunHash = @hash_0 AND k.Run = @run_0 AND k.Key IN UNNEST(@keys_0)) AS Records,
	-- end
	-- if result
	ARRAY(SELECT AS STRUCT w.FirstSeq, w.LastSeq, w.Time, w.Token, w.Versions, w.Whole, w.FormerEnd
		FROM Writes@{FORCE_INDEX=WritesById} AS w
		WHERE w.RunHash = @hash_0 AND w.Run = @run_0 AND w.Callers = @callers_0 AND w.Id = @id_0
			AND IFNULL(w.Kind, 'b') = @kind_0) AS Done,
	-- end
	(SELECT e.Epoch FROM GrantEpochs AS e WHERE e.Shard = @shard_0) AS Epoch, -- if epoch
	0 AS Number
