-- Properties of the current grant besides token and expiry. NULL (unknown) in a run whose grant was
-- made before version 3.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS TtlMicros INT64; -- of the last grant or renewal

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Granted TIMESTAMP;

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Renewed TIMESTAMP;

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Progressed TIMESTAMP;

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS MaxStallMicros INT64; -- NULL: none

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS FormerEnd INT64; -- how the previous grant ended (runstore.GrantEnd)

-- Unlisted runs have no entry in the indexes of listed runs. Spanner backfills the column for
-- existing runs.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Unlisted BOOL; -- NULL: listed

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Listed TIMESTAMP AS (IF(Unlisted, NULL, Created)) STORED;

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsListed ON Runs (Shard, Listed);

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsListedNewest ON Runs (Shard, Listed DESC);

-- The tokens under which a record was first and last changed: 0 for a change without a
-- fence, NULL for one before version 3.
ALTER TABLE Records ADD COLUMN IF NOT EXISTS CreatedToken INT64;

ALTER TABLE Records ADD COLUMN IF NOT EXISTS UpdatedToken INT64;

ALTER TABLE Queue ADD COLUMN IF NOT EXISTS CreatedToken INT64;

ALTER TABLE Queue ADD COLUMN IF NOT EXISTS UpdatedToken INT64;

-- What Id names: 'a' a grant, 'r' the release of one (rules.GrantResult and its like), 'b' or NULL
-- a batch or a renewal.
ALTER TABLE Writes ADD COLUMN IF NOT EXISTS Kind STRING(1);

ALTER TABLE Writes ADD COLUMN IF NOT EXISTS FormerEnd INT64; -- for a grant: how the previous grant ended

-- The current epoch for each shard. It replaces EpochCopies, which every guard statement of
-- version 2 names: each write of a version 2 program that still has the database open fails before
-- it has changed anything.
CREATE TABLE IF NOT EXISTS EpochShards (
	Shard INT64 NOT NULL,
	Epoch INT64 NOT NULL,
) PRIMARY KEY (Shard);

DROP INDEX IF EXISTS RunsByCreation;

DROP INDEX IF EXISTS RunsByCreationNewest;

DROP TABLE IF EXISTS EpochCopies;
