-- journal_tail returns the number and the last seq of a run, and its tail: the seq of the first
-- event in it, and the extents.
--
-- ?1 id of the run
SELECT no, last_seq, tail_seq, tail FROM runs WHERE id = ? AND purged = 0
