-- The grants that a run had before the one in runs: for each what former makes of its id,
-- the newest first, at most 64 (runstore.RememberedGrants). They are apart from runs, whose
-- row every append writes. A run that was leased once has no row; a purged run keeps its
-- own.
CREATE TABLE tapestore.grants (
	run    bigint  PRIMARY KEY,
	former bytea[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
