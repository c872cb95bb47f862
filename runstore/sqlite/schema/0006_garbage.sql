-- The former numbers of purged runs whose rows in places, records, batches, events and journal
-- are not all deleted yet. No number is given to a second run.
CREATE TABLE garbage (run INTEGER PRIMARY KEY) STRICT;

-- No record of the run has a higher version, nor had one: a purge raises version_floor to it.
ALTER TABLE runs ADD COLUMN version_bound INTEGER NOT NULL DEFAULT 0;

UPDATE runs SET version_bound = max(version_floor, coalesce((SELECT max(version) FROM records WHERE records.run = runs.no), 0));
