-- records_placed returns the records of a run in the order of their keys, with their index entries,
-- and with the version above which new records of the run begin. One statement reads all, so they
-- are of one state. Without a record their columns are NULL. It returns no row if there is no run.
--
-- @hash hash of the run's id, @run id of the run, @after key after which the page begins, @limit
-- number of records
SELECT h.VersionFloor, k.Key, k.Version, k.CreatedSeq, k.CreatedTime, k.CreatedToken, k.UpdatedSeq, k.UpdatedTime, k.UpdatedToken,
	k.PlaceNames, k.PlaceTimes, k.Value
FROM Runs AS h LEFT JOIN Records AS k ON k.RunHash = h.RunHash AND k.Run = h.Run AND k.Key > @after
WHERE h.RunHash = @hash AND h.Run = @run AND h.Created IS NOT NULL
ORDER BY k.Key LIMIT @limit
