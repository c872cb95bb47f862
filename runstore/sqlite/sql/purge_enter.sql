-- purge_enter enters the number of a purged run in garbage.
--
-- ?1 number of the run
INSERT INTO garbage (run) VALUES (?)
