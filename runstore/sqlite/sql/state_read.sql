-- state_read returns the state with which a write transaction begins: the last position, the epoch,
-- the clock, which another handle may have set, and the number of changes.
SELECT (SELECT coalesce(max(pos), 0) FROM events), epoch, clock_since, clock_at, changes FROM store
