-- purge_done removes a number from garbage after all its rows were deleted.
--
-- ?1 former number of the run
DELETE FROM garbage WHERE run = ?
