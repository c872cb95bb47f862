-- changes_read returns a number that grows with every change of the store: the sum of its counter
-- of changes and its last position.
SELECT changes + (SELECT coalesce(max(pos), 0) FROM events) FROM store
