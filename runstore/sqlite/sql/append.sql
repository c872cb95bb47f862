-- append is the fenced write. It checks the fence on the row of a run, assigns the seqs of the new
-- events and records their positions. It changes no row if the fence is not the current grant, if
-- the caller's last seq is stale, or if the batch was applied before.
--
-- Parts: fenced, the write is under a fence; named, its result is stored under a name; records, it
-- changes records, so the bound of their versions grows by one.
--
-- In this order: the new last seq, the extent of the events, the time of the progress in
-- microseconds or NULL (only a write under a fence is progress), number of the run, last seq; if
-- named, number of the run's last result and name of the result; if fenced, token, grant id, owner
-- and the present time in microseconds.
--
-- UPDATE … RETURNING by id would need no look-up before it, at three times the cost.
UPDATE runs SET
	batches = batches + 1, -- if named
	version_bound = version_bound + 1, -- if records
	last_seq = ?, tail = CAST(tail || ? AS BLOB), progressed = coalesce(?, progressed)
WHERE no = ? AND last_seq = ? AND purged = 0
	AND batches = ? AND NOT EXISTS (SELECT 1 FROM batches b WHERE b.run = runs.no AND b.id = ?) -- if named
	AND token = ? AND grant_id = ? AND owner = ? AND grant_state = 1 -- if fenced
	AND (strict = 0 OR expires > ?) -- if fenced
