-- epoch_raise sets the epoch.
--
-- ?1 new epoch, ?2 number of changes that the watermark has recorded, 0 without one
UPDATE store SET epoch = ?, changes = max(changes, ?) + 1
