-- record_raise_floor raises the version above which new records of a run start, and returns it.
--
-- ?1 version of a deleted record, ?2 number of the run
UPDATE runs SET version_floor = max(version_floor, ?) WHERE no = ? RETURNING version_floor
