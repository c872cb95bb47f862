-- epoch_insert records an epoch.
--
-- ?1 epoch, ?2 time in microseconds, ?3 reason
INSERT INTO epochs (epoch, at, reason) VALUES (?, ?, ?)
