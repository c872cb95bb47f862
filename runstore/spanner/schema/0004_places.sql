-- Place orders a run in the index of runnable runs: the later of the time from which it may be
-- driven and HeldUntil, the expiry of its current grant as granted. A renewal does not change
-- HeldUntil, so it writes no index. A release, a purge and a new epoch change GrantState, and with
-- it Place.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS HeldUntil TIMESTAMP;

ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Place TIMESTAMP AS (IF(GrantState = 1 AND HeldUntil > Runnable, HeldUntil, Runnable)) STORED;

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsPlaced ON Runs (Shard, Place, Created);

DROP INDEX IF EXISTS RunsRunnable;

-- Finds the result of a write by its id with one seek.
CREATE INDEX IF NOT EXISTS WritesById ON Writes (RunHash, Run, Callers, Id), INTERLEAVE IN Runs;

-- Set on results of purged runs, which are kept for a day while a call may still look them up.
ALTER TABLE Writes ADD COLUMN IF NOT EXISTS Ended TIMESTAMP;

ALTER TABLE Writes ADD ROW DELETION POLICY (OLDER_THAN(Ended, INTERVAL 1 DAY));

-- From this version on a row of Feed only refers to its event in Events: Time, Token, Kind, Owner
-- and Data are empty. Programs of version 3 would return empty events, so the index that their
-- scans and feeds name is renamed, and so is the table that their writes name.
CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsPurged ON Runs (Purging);

DROP INDEX IF EXISTS RunsPurging;

-- Number of shards of the feed; it only grows. NULL: eight.
ALTER TABLE Store ADD COLUMN IF NOT EXISTS FeedShards INT64;

CREATE TABLE IF NOT EXISTS GrantEpochs (
	Shard INT64 NOT NULL,
	Epoch INT64 NOT NULL,
) PRIMARY KEY (Shard);

DROP TABLE IF EXISTS EpochShards;
