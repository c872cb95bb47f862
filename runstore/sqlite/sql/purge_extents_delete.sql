-- purge_extents_delete deletes extents after all their events were deleted.
--
-- ?1 former number of the run, ?2 seq of the first event
DELETE FROM journal WHERE run = ? AND first_seq = ?
