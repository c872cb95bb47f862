-- purge_extents_read returns the oldest extents of a purged run, with the seq of their first event.
--
-- ?1 former number of the run
SELECT first_seq, extents FROM journal WHERE run = ? ORDER BY first_seq LIMIT 1
