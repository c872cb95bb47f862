-- store_open notes the opening of the store. It makes the opening of a database that cannot be
-- written fail now, and not at the first commit.
--
-- ?1 present time in microseconds
UPDATE store SET clock_seen = max(clock_seen, ?)
