-- journal_extents returns the sealed extents of a run, beginning with the row that contains a seq.
--
-- ?1 number of the run, ?2 seq
SELECT first_seq, extents
FROM journal
WHERE run = ?1 AND first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE run = ?1 AND first_seq <= ?2), 0)
ORDER BY first_seq
