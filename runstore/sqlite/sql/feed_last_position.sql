-- feed_last_position returns the last position of the feed, 0 if it is empty.
SELECT coalesce(max(pos), 0) FROM events
