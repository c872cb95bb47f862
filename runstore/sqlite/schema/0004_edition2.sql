-- What a run shows of its current grant, beside its token and expiry. Of a grant that was
-- made before these columns were added the times are 0: not known.
ALTER TABLE runs ADD COLUMN ttl INTEGER NOT NULL DEFAULT 0; -- microseconds, of the last grant or renewal
ALTER TABLE runs ADD COLUMN granted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN renewed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN max_stall INTEGER NOT NULL DEFAULT 0; -- microseconds, 0: none
ALTER TABLE runs ADD COLUMN progressed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN former_end INTEGER NOT NULL DEFAULT 0; -- runstore.GrantEnd

-- Unlisted runs are in no list of runs.
ALTER TABLE runs ADD COLUMN unlisted INTEGER NOT NULL DEFAULT 0;

DROP INDEX runs_created;

CREATE INDEX runs_created ON runs (created, no) WHERE purged = 0 AND unlisted = 0;

-- The tokens under which a record was first and last changed, 0 for a change without a
-- fence or before these columns were added.
ALTER TABLE records ADD COLUMN created_token INTEGER NOT NULL DEFAULT 0;
ALTER TABLE records ADD COLUMN updated_token INTEGER NOT NULL DEFAULT 0;

-- Results of grants and releases are remembered too, so a letter before the id tells them
-- apart (rules.BatchResult and its like). An UPDATE would meet the old id of one batch where
-- the new one of another belongs.
ALTER TABLE batches RENAME TO batches_of_before;

CREATE TABLE batches (
	run    INTEGER NOT NULL,
	id     TEXT    NOT NULL,
	no     INTEGER NOT NULL, -- grows by one with each of the run's results that are remembered
	result BLOB    NOT NULL,
	PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

INSERT INTO batches SELECT run, 'b' || id, no, result FROM batches_of_before;

DROP TABLE batches_of_before;
