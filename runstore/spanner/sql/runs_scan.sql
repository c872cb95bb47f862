-- runs_scan returns the ids of the runs that follow a run, in the order of their keys.
--
-- @hash hash and @run id of the run after which the page begins, or NULL for the first page; @limit
-- number of runs
SELECT h.Run FROM Runs AS h
WHERE h.Created IS NOT NULL AND (@run IS NULL OR h.RunHash > @hash OR (h.RunHash = @hash AND h.Run > @run))
ORDER BY h.RunHash, h.Run LIMIT @limit
