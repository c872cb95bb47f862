-- journal_clear_tail empties the tail of a run after journal_seal.
--
-- ?1 number of the run
UPDATE runs SET tail_seq = last_seq + 1, tail = x'' WHERE no = ?
