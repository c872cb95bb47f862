-- progress_read returns what the watermark is compared with: the incarnation, the number of
-- changes, the last position, and the boot that unsynced_set has recorded or NULL.
SELECT incarnation, changes, (SELECT coalesce(max(pos), 0) FROM events), (SELECT reason FROM epochs WHERE epoch = 0)
FROM store
