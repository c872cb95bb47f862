-- unsynced_set records in which boot of the host commits were not synced. The row of epoch 0, which nothing
-- raised, has it.
--
-- ?1 time in microseconds, ?2 boot of the host, empty for none
INSERT OR REPLACE INTO epochs (epoch, at, reason) VALUES (0, ?, ?)
