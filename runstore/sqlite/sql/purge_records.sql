-- purge_records deletes up to 8 records of a purged run. The largest record has 4 MiB, and 8 of
-- them take about 10 ms.
--
-- ?1 former number of the run
DELETE FROM records WHERE rowid IN (SELECT rowid FROM records WHERE run = ? LIMIT 8)
