-- clock_set sets the clock of the store.
--
-- ?1 boot of the host, ?2 how long the host has been up in nanoseconds, ?3 and ?4 present time in
-- microseconds
UPDATE store SET clock_boot = ?, clock_since = ?, clock_at = ?, clock_seen = max(clock_seen, ?)
