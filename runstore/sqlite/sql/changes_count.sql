-- changes_count counts a change that no event's position records, and returns the number of
-- changes.
--
-- ?1 present time in microseconds
UPDATE store SET changes = changes + 1, clock_seen = max(clock_seen, ?) RETURNING changes
