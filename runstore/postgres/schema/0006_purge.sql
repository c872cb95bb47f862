-- A purge raises version_floor by last_seq and batches, because a write adds one to the version of a
-- record and to one of the two. Before version 4 of the schema a creation or an acquire without events
-- added to neither. No write goes on meanwhile (lockTables): it would be counted by half.
UPDATE tapestore.runs SET version_floor = highest.version
FROM (SELECT run, max(version) AS version FROM tapestore.records GROUP BY run) AS highest
WHERE highest.run = runs.no AND highest.version > version_floor + last_seq + batches;

-- A purge takes a moment, however much the run has: it gives the run's row a new number, and what is
-- stored under the former one is garbage. No reader finds that, because all come by the number of a
-- run. It is deleted in bounded steps, by tapestore.collect.
CREATE TABLE tapestore.garbage (
	id       bytea  NOT NULL,            -- of the run that was purged
	run      bigint NOT NULL,            -- the number that it had
	last_seq bigint NOT NULL,            -- of its last event
	seq      bigint NOT NULL DEFAULT 0,  -- events up to this one are deleted
	key      bytea  NOT NULL DEFAULT '', -- records up to this one are deleted
	PRIMARY KEY (id, run)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- That a position is not beyond runstore.MaxPosition is looked at once for each write, where it is
-- made: a constraint cost each append a tenth of its time.
ALTER TABLE tapestore.events DROP CONSTRAINT IF EXISTS events_position_limit;
