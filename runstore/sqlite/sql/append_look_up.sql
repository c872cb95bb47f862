-- append_look_up returns what append must know of a run: its number, its last seq, the size of its
-- tail in bytes, and the number of its last result.
--
-- ?1 id of the run
SELECT no, last_seq, length(tail), batches FROM runs WHERE id = ? AND purged = 0
