-- Times are microseconds since 1970 on the store clock. Ids, keys and owners are
-- BLOBs, because they may hold any bytes.

-- One row: what the store knows of itself.
CREATE TABLE store (
	id          INTEGER PRIMARY KEY CHECK (id = 1),
	incarnation TEXT    NOT NULL, -- compared with the witness file
	changes     INTEGER NOT NULL, -- grows with every change that a restore must not lose
	epoch       INTEGER NOT NULL,
	clock_boot  TEXT    NOT NULL, -- the boot of the host in which the clock was set…
	clock_since INTEGER NOT NULL, -- …how long it had been up then…
	clock_at    INTEGER NOT NULL, -- …and what the store clock showed
	clock_seen  INTEGER NOT NULL  -- the latest time that was written
) STRICT;

CREATE TABLE epochs (
	epoch  INTEGER PRIMARY KEY,
	at     INTEGER NOT NULL,
	reason TEXT    NOT NULL
) STRICT;

-- A run's head, its lease and where its newest events stand. One row, so that an
-- append under a fence changes one row here and adds one to events. A purged run
-- keeps its row for its token.
CREATE TABLE runs (
	no             INTEGER PRIMARY KEY,
	id             BLOB    NOT NULL UNIQUE,
	purged         INTEGER NOT NULL,
	status         INTEGER NOT NULL,
	created        INTEGER NOT NULL,
	runnable       INTEGER,          -- NULL: never
	last_seq       INTEGER NOT NULL,
	version_floor  INTEGER NOT NULL, -- the highest version of a deleted record
	token          INTEGER NOT NULL,
	grant_id       TEXT    NOT NULL,
	grant_state    INTEGER NOT NULL, -- 0 none, 1 current, 2 released, 3 revoked
	owner          BLOB    NOT NULL,
	reactor        BLOB    NOT NULL,
	strict         INTEGER NOT NULL,
	expires        INTEGER NOT NULL,
	preempted_from BLOB    NOT NULL,
	preempt_reason BLOB    NOT NULL,
	tail_seq       INTEGER NOT NULL, -- the seq of the first event in tail
	tail           BLOB    NOT NULL  -- where the events since the last seal stand
) STRICT;

CREATE INDEX runs_created ON runs (created, no) WHERE purged = 0;

-- No column of this index changes at a heartbeat.
CREATE INDEX runs_runnable ON runs (runnable, created, no) WHERE runnable IS NOT NULL;

-- All events of all runs in commit order: the feed. There is no index by run: it
-- would make every commit change a page of its own for every run. A run finds its
-- events by runs.tail and journal.
CREATE TABLE events (
	pos   INTEGER PRIMARY KEY,
	run   INTEGER NOT NULL, -- 0: a mark that keeps positions growing, no event
	seq   INTEGER NOT NULL,
	kind  TEXT    NOT NULL,
	data  BLOB    NOT NULL,
	time  INTEGER NOT NULL,
	token INTEGER NOT NULL,
	owner BLOB    NOT NULL
) STRICT;

-- Where a run's older events stand: extents, each a first position and a count,
-- for the events from first_seq to the next row's (or to runs.tail_seq).
CREATE TABLE journal (
	run       INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	extents   BLOB    NOT NULL,
	PRIMARY KEY (run, first_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE records (
	run         INTEGER NOT NULL,
	key         BLOB    NOT NULL,
	version     INTEGER NOT NULL,
	value       BLOB    NOT NULL,
	created_seq INTEGER NOT NULL,
	created     INTEGER NOT NULL,
	updated_seq INTEGER NOT NULL,
	updated     INTEGER NOT NULL,
	places      INTEGER NOT NULL, -- how many rows it has in places
	UNIQUE (run, key)
) STRICT;

-- The cross-run queues.
CREATE TABLE places (
	name    BLOB    NOT NULL,
	at      INTEGER NOT NULL,
	written INTEGER NOT NULL,
	run     INTEGER NOT NULL,
	key     BLOB    NOT NULL,
	PRIMARY KEY (name, at, written, run, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX places_of_record ON places (run, key);

-- The results of batches that carried an id.
CREATE TABLE batches (
	run    INTEGER NOT NULL,
	id     TEXT    NOT NULL,
	result BLOB    NOT NULL,
	PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;
