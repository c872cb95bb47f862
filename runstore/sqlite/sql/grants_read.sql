-- grants_read returns the former grants of a run.
--
-- ?1 number of the run
SELECT former FROM grants WHERE run = ?
