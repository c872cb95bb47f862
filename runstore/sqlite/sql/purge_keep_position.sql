-- purge_keep_position replaces an event at the last position of the feed by a marker, a row of run
-- 0, because that position must not be used again.
--
-- ?1 position, ?2 former number of the run
UPDATE events SET run = 0, seq = 0, kind = '', data = x'', token = 0, owner = x'' WHERE pos = ? AND run = ?
