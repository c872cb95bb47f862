-- purge_next returns the lowest number in garbage.
--
-- ?1 the highest number to return
SELECT run FROM garbage WHERE run <= ? ORDER BY run LIMIT 1
