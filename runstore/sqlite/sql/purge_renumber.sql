-- purge_renumber gives the row of a purged run a new number. It returns the number and the bound of
-- the versions of the run's records.
--
-- ?1 former number of the run
UPDATE runs SET no = (SELECT max(no) FROM runs) + 1, tail_seq = 1, tail = x''
WHERE no = ?
RETURNING no, version_bound
