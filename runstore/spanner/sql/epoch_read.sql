-- epoch_read returns the epoch, the incarnation, whether the grants of earlier epochs were ended,
-- the number of shards of the feed, and the time of the store clock.
SELECT s.Epoch, s.Incarnation, s.Ended, COALESCE(s.FeedShards, 8) AS FeedShards, CURRENT_TIMESTAMP() AS Now
FROM Store AS s
WHERE s.One = 1
