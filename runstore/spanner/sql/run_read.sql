-- run_read returns the head of a run and its summary record, whose key is 'run'. The value of the
-- summary is a separate column, because it may be too large for a field of a STRUCT. Without a run
-- Head is empty.
--
-- @hash hash of the run's id, @run id of the run
SELECT
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.Owner, h.Reactor,
			h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.TtlMicros, h.Granted, h.Renewed, h.MaxStallMicros, h.Progressed, h.FormerEnd,
			h.Unlisted
		FROM Runs AS h
		WHERE h.RunHash = @hash AND h.Run = @run AND h.Created IS NOT NULL) AS Head,
	ARRAY(SELECT AS STRUCT k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.UpdatedSeq, k.UpdatedTime, k.CreatedToken, k.UpdatedToken
		FROM Records AS k
		WHERE k.RunHash = @hash AND k.Run = @run AND k.Key = b'run') AS Summary,
	(SELECT k.Value FROM Records AS k WHERE k.RunHash = @hash AND k.Run = @run AND k.Key = b'run') AS SummaryValue
