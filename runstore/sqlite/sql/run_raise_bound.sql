-- run_raise_bound raises the bound of the versions of a run's records, above which a purge lets the
-- versions of the next run of the id begin.
--
-- ?1 highest version of an imported record, or imported floor; ?2 number of the run
UPDATE runs SET version_bound = max(version_bound, ?) WHERE no = ?
