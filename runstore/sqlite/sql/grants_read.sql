-- grants_read returns the former grants of a run and their terms.
--
-- ?1 number of the run
SELECT former, terms FROM grants WHERE run = ?
