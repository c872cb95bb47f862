-- A run stands in the index of runnable runs at its Place: the later of the time from which
-- it may run and HeldUntil, the expiry of its current grant as it was when the grant was
-- made. A renewal leaves HeldUntil, so it changes no index. A release, a purge and a new
-- epoch change GrantState, and with it the Place.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS HeldUntil TIMESTAMP;

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Place TIMESTAMP AS (IF(GrantState = 1 AND HeldUntil > Runnable, HeldUntil, Runnable)) STORED;

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsPlaced ON Runs (Shard, Place, Created);

DROP INDEX IF EXISTS RunsRunnable;

-- The result of a write is found by its id with one seek.
CREATE INDEX IF NOT EXISTS WritesById ON Writes (RunHash, Run, Callers, Id), INTERLEAVE IN Runs;

-- Results of runs that were purged: kept while a call may still ask for them.
ALTER TABLE Writes ADD COLUMN IF NOT EXISTS Ended TIMESTAMP;

ALTER TABLE Writes ADD ROW DELETION POLICY (OLDER_THAN(Ended, INTERVAL 1 DAY));

-- From this version on a row of Feed is a place of Events only: Time, Token, Kind, Owner and
-- Data are empty. Programs of version 3 would take that for empty events, so the index that
-- their scans and feeds name has another name, and so has the table that their writes name.
CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsPurged ON Runs (Purging);

DROP INDEX IF EXISTS RunsPurging;

-- Over how many shards the feed is spread; it only grows. NULL: eight.
ALTER TABLE Store ADD COLUMN IF NOT EXISTS FeedShards INT64;

CREATE TABLE IF NOT EXISTS GrantEpochs (
	Shard INT64 NOT NULL,
	Epoch INT64 NOT NULL,
) PRIMARY KEY (Shard);

DROP TABLE IF EXISTS EpochShards;
