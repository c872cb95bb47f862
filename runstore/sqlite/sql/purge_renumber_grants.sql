-- purge_renumber_grants gives the former grants of a purged run its new number.
--
-- ?1 new number of the run, ?2 former number
UPDATE grants SET run = ? WHERE run = ?
