-- A store that a program of schema version 3 made and filled, as SQL.
PRAGMA application_id = 1415671909;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE batches (
	run    INTEGER NOT NULL,
	id     TEXT    NOT NULL,
	no     INTEGER NOT NULL, -- grows by one with each of the run's batches that carry an id
	result BLOB    NOT NULL,
	PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;
INSERT INTO "batches" VALUES(1,'batch',1,X'7B224669727374536571223A312C224C617374536571223A312C2254696D65223A22323032362D31312D32335430323A30323A32312E3937393036345A222C2256657273696F6E73223A5B315D2C225265706C61796564223A66616C73657D');
INSERT INTO "batches" VALUES(2,'batch',1,X'7B224669727374536571223A312C224C617374536571223A312C2254696D65223A22323032362D31312D32335430323A30323A32312E3938303931365A222C2256657273696F6E73223A5B315D2C225265706C61796564223A66616C73657D');
CREATE TABLE epochs (
	epoch  INTEGER PRIMARY KEY,
	at     INTEGER NOT NULL,
	reason TEXT    NOT NULL
) STRICT;
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
INSERT INTO "events" VALUES(1,1,1,'event',X'6576656E74206F662068656C64',1795399341979064,1,X'6F776E6572');
INSERT INTO "events" VALUES(2,2,1,'event',X'6576656E74206F662072656C6561736564',1795399341980916,1,X'6F776E6572');
INSERT INTO "events" VALUES(3,0,0,'',X'',1795399341983499,0,X'');
CREATE TABLE grants (
	run    INTEGER PRIMARY KEY,
	former BLOB    NOT NULL
) STRICT;
CREATE TABLE journal (
	run       INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	extents   BLOB    NOT NULL,
	PRIMARY KEY (run, first_seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE places (
	name    BLOB    NOT NULL,
	at      INTEGER NOT NULL,
	written INTEGER NOT NULL,
	run     INTEGER NOT NULL,
	key     BLOB    NOT NULL,
	PRIMARY KEY (name, at, written, run, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "places" VALUES(X'7175657565',1795399341979064,1795399341979064,1,X'72756E');
INSERT INTO "places" VALUES(X'7175657565',1795399341980916,1795399341980916,2,X'72756E');
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
INSERT INTO "records" VALUES(1,X'72756E',1,X'73756D6D617279',1,1795399341979064,1,1795399341979064,1);
INSERT INTO "records" VALUES(2,X'72756E',1,X'73756D6D617279',1,1795399341980916,1,1795399341980916,1);
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
, batches INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "runs" VALUES(1,X'68656C64',0,4,1795399341978236,1795399341978236,1,0,1,'grant of held',1,X'6F776E6572',X'6167656E74',0,1795401141978236,X'',X'',1,X'0101',1);
INSERT INTO "runs" VALUES(2,X'72656C6561736564',0,4,1795399341980473,1795399341980473,1,0,1,'grant of released',2,X'',X'',0,1795401141980473,X'',X'',1,X'0201',1);
INSERT INTO "runs" VALUES(3,X'707572676564',1,4,1795399341981958,1795399341981958,0,1,1,'grant of purged',3,X'',X'',0,1795401141981958,X'',X'',1,X'',1);
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
INSERT INTO "store" VALUES(1,'ORBSG5MKHWF54BZJ6AKWALEQCF',5,0,'7ab0973f-1bb1-4e8e-a266-9ceeefe22888',4739197937389,1795399341977466,1795399341984361);
CREATE INDEX runs_created ON runs (created, no) WHERE purged = 0;
CREATE INDEX runs_runnable ON runs (runnable, created, no) WHERE runnable IS NOT NULL;
CREATE INDEX places_of_record ON places (run, key);
COMMIT;
