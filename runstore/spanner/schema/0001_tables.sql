-- Ids, keys, kinds and owners are BYTES, because they may hold any bytes. No key begins with an id
-- that a caller chose: a run's id follows its hash, so increasing ids make no hot spot. Rows that
-- are ordered by time are spread over 8 shards.

CREATE TABLE IF NOT EXISTS TapestoreSchema (
	Version  INT64     NOT NULL,
	Migrated TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (Version);

-- One row: the epoch and the incarnation of this store.
CREATE TABLE IF NOT EXISTS Store (
	One         INT64        NOT NULL,
	Epoch       INT64        NOT NULL,
	Incarnation STRING(1024) NOT NULL, -- the database's full name when the epoch began
	Ended       BOOL         NOT NULL, -- whether all grants of earlier epochs have been ended
) PRIMARY KEY (One);

CREATE TABLE IF NOT EXISTS Epochs (
	Epoch  INT64      NOT NULL,
	Began  TIMESTAMP  NOT NULL,
	Reason BYTES(256) NOT NULL,
) PRIMARY KEY (Epoch);

-- A copy of the current epoch for each shard, so that grants do not all read one row.
CREATE TABLE IF NOT EXISTS EpochCopies (
	Shard INT64 NOT NULL,
	Epoch INT64 NOT NULL,
) PRIMARY KEY (Shard);

-- A run's head and its lease. Every write of the run reads and writes this row, which orders the
-- writes. The row outlives a purge, because it holds the run's token.
CREATE TABLE IF NOT EXISTS Runs (
	RunHash       INT64      NOT NULL,
	Run           BYTES(256) NOT NULL,
	Shard         INT64      NOT NULL,
	Status        INT64      NOT NULL,
	Created       TIMESTAMP,            -- NULL: purged
	Runnable      TIMESTAMP,            -- NULL: never
	LastSeq       INT64      NOT NULL,
	Token         INT64      NOT NULL,
	GrantState    INT64      NOT NULL,  -- 0 none, 1 current, 2 released, 3 revoked
	GrantId       BYTES(64)  NOT NULL,
	Owner         BYTES(256) NOT NULL,
	Reactor       BYTES(256) NOT NULL,
	Strict        BOOL       NOT NULL,
	Expires       TIMESTAMP,            -- NULL: never leased
	PreemptedFrom BYTES(256) NOT NULL,
	PreemptReason BYTES(256) NOT NULL,
	VersionFloor  INT64      NOT NULL,  -- the highest version of a deleted record
	VersionTop    INT64      NOT NULL,  -- the highest version of any record
	CallerWrites  INT64      NOT NULL,  -- number of results stored under callers' ids…
	OtherWrites   INT64      NOT NULL,  -- …and under ids of the adapter
	Seen          TIMESTAMP  NOT NULL,  -- the store clock at the last write: the run's times never go back
	Purging       BYTES(16),            -- set while the rows of a purged run are being deleted
) PRIMARY KEY (RunHash, Run);

-- No column of these indexes changes at a heartbeat or an append.
CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsByCreation ON Runs (Shard, Created);

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsByCreationNewest ON Runs (Shard, Created DESC);

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsRunnable ON Runs (Shard, Runnable, Created);

CREATE NULL_FILTERED INDEX IF NOT EXISTS RunsPurging ON Runs (Purging);

CREATE TABLE IF NOT EXISTS Events (
	RunHash   INT64      NOT NULL,
	Run       BYTES(256) NOT NULL,
	Seq       INT64      NOT NULL,
	Committed TIMESTAMP  NOT NULL OPTIONS (allow_commit_timestamp = true), -- with…
	Slot      INT64      NOT NULL,                                         -- …this its position in the feed
	Time      TIMESTAMP  NOT NULL,
	Token     INT64      NOT NULL,
	Kind      BYTES(128) NOT NULL,
	Owner     BYTES(256) NOT NULL,
	Data      BYTES(MAX) NOT NULL,
) PRIMARY KEY (RunHash, Run, Seq),
	INTERLEAVE IN PARENT Runs ON DELETE CASCADE;

CREATE TABLE IF NOT EXISTS Records (
	RunHash     INT64       NOT NULL,
	Run         BYTES(256)  NOT NULL,
	Key         BYTES(1024) NOT NULL,
	Version     INT64       NOT NULL,
	CreatedSeq  INT64       NOT NULL,
	CreatedTime TIMESTAMP   NOT NULL,
	UpdatedSeq  INT64       NOT NULL,
	UpdatedTime TIMESTAMP   NOT NULL,
	PlaceNames  ARRAY<BYTES(256)>, -- its index entries (rows of Queue): names…
	PlaceTimes  ARRAY<TIMESTAMP>,  -- …and times
	Value       BYTES(MAX)  NOT NULL,
) PRIMARY KEY (RunHash, Run, Key),
	INTERLEAVE IN PARENT Runs ON DELETE CASCADE;

-- The results of a run's last writes, in two rings of rows: those under callers' ids, and all
-- others, under ids of the adapter.
CREATE TABLE IF NOT EXISTS Writes (
	RunHash  INT64      NOT NULL,
	Run      BYTES(256) NOT NULL,
	Callers  BOOL       NOT NULL,
	Slot     INT64      NOT NULL,
	Id       BYTES(64)  NOT NULL,
	FirstSeq INT64      NOT NULL,
	LastSeq  INT64      NOT NULL,
	Time     TIMESTAMP  NOT NULL,
	Token    INT64      NOT NULL, -- of the grant that was made or presented as fence
	Versions ARRAY<INT64>,
	Whole    BYTES(16),           -- the id of the commit over several runs that the write was part of, if one of its batches had an id
) PRIMARY KEY (RunHash, Run, Callers, Slot),
	INTERLEAVE IN PARENT Runs ON DELETE CASCADE;

-- The feed of all runs, with all that a reader gets. It is a table and not an index, because its
-- key must be unique: two events of one microsecond must not have the same position.
CREATE TABLE IF NOT EXISTS Feed (
	Shard     INT64     NOT NULL,
	Committed TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
	Slot      INT64     NOT NULL,
	Run       BYTES(256),          -- NULL: a row without an event, written by a new epoch
	Seq       INT64,
	Time      TIMESTAMP,
	Token     INT64,
	Kind      BYTES(128),
	Owner     BYTES(256),
	Data      BYTES(MAX),
) PRIMARY KEY (Shard, Committed, Slot);

-- The cross-run queues, with all that a scan returns. A record has up to eight rows. With
-- more than four rows their Value is empty, and a scan reads it from Records.
CREATE TABLE IF NOT EXISTS Queue (
	Name        BYTES(256)  NOT NULL,
	Shard       INT64       NOT NULL,
	Due         TIMESTAMP   NOT NULL,
	UpdatedTime TIMESTAMP   NOT NULL,
	RunHash     INT64       NOT NULL,
	Run         BYTES(256)  NOT NULL,
	Key         BYTES(1024) NOT NULL,
	Version     INT64       NOT NULL,
	CreatedSeq  INT64       NOT NULL,
	CreatedTime TIMESTAMP   NOT NULL,
	UpdatedSeq  INT64       NOT NULL,
	Value       BYTES(MAX)  NOT NULL,
) PRIMARY KEY (Name, Shard, Due, UpdatedTime, RunHash, Run, Key);
