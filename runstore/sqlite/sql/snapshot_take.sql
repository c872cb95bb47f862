-- snapshot_take returns what every read needs, as the first statement of its transaction: the
-- clock, which another handle may have set since.
SELECT clock_since, clock_at FROM store
