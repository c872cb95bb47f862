-- purge_events deletes the events of an extent.
--
-- ?1 first position, ?2 last position, ?3 former number of the run
DELETE FROM events WHERE pos BETWEEN ? AND ? AND run = ?
