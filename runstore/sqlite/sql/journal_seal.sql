-- journal_seal moves the extents in the tail of a run into a row of journal; see
-- journal_clear_tail.
--
-- ?1 number of the run
INSERT INTO journal (run, first_seq, extents)
SELECT no, tail_seq, tail FROM runs WHERE no = ? AND length(tail) > 0
