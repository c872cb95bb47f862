-- progress_read returns what the watermark is compared with: the incarnation, the number of
-- changes, the epoch and the last position.
SELECT incarnation, changes, epoch, (SELECT coalesce(max(pos), 0) FROM events) FROM store
