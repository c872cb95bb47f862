-- purge_extents_keep stores the extents whose events are not deleted yet.
--
-- ?1 extents, ?2 former number of the run, ?3 seq of the first event
UPDATE journal SET extents = ? WHERE run = ? AND first_seq = ?
