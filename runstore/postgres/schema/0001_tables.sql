-- "tapestore" stands for the schema's name, which is an option. Ids, keys, kinds
-- and owners are bytea, because they may hold any bytes.

-- One row: what the store knows of itself.
CREATE TABLE tapestore.store (
	one           boolean PRIMARY KEY DEFAULT true CHECK (one),
	epoch         bigint NOT NULL,
	cluster       text   NOT NULL, -- system identifier of the cluster that the epoch belongs to…
	timeline      bigint NOT NULL, -- …and the timeline that it was on
	position_base bigint NOT NULL, -- the feed's position of…
	xid_base      bigint NOT NULL, -- …this transaction
	last_purged   bigint NOT NULL DEFAULT 0 -- the highest position of an event that was purged
);

CREATE TABLE tapestore.epochs (
	epoch  bigint      PRIMARY KEY,
	at     timestamptz NOT NULL,
	reason bytea       NOT NULL
);

-- A run's head and its lease: one row, which every write of the run locks. A
-- purged run keeps it for its token. Updates that change neither runnable nor
-- purged are HOT, because no index holds any other column that changes.
CREATE TABLE tapestore.runs (
	no             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	last_seq       bigint      NOT NULL,
	last_position  bigint      NOT NULL DEFAULT 0, -- of its last event, purged ones included
	token          bigint      NOT NULL,
	version_floor  bigint      NOT NULL, -- the highest version of a deleted record
	batches        bigint      NOT NULL, -- how many rows it ever had in batches
	created        timestamptz NOT NULL,
	runnable       timestamptz,          -- NULL: never
	expires        timestamptz,          -- NULL: never leased
	status         integer     NOT NULL,
	grant_state    smallint    NOT NULL, -- 0 none, 1 current, 2 released, 3 revoked
	purged         boolean     NOT NULL,
	is_strict      boolean     NOT NULL,
	id             bytea       NOT NULL UNIQUE,
	grant_id       bytea       NOT NULL,
	owner          bytea       NOT NULL,
	reactor        bytea       NOT NULL,
	preempted_from bytea       NOT NULL,
	preempt_reason bytea       NOT NULL,
	voided         bigint[],             -- nonces of writes that were given up: a late copy is refused
	recent         bigint[]              -- nonces of the last grants, creations and purges, each with the token then
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX runs_created ON tapestore.runs (created, no) WHERE NOT purged;

-- No column of this index changes at a heartbeat.
CREATE INDEX runs_runnable ON tapestore.runs (runnable, created, no) WHERE runnable IS NOT NULL AND NOT purged;

-- All events. position is made of the number of a transaction, so it has the order in
-- which a reader can be sure of having seen all before (see feed.go).
CREATE TABLE tapestore.events (
	run      bigint      NOT NULL,
	seq      bigint      NOT NULL,
	position bigint      NOT NULL,
	nonce    bigint,               -- of the write, on its first event
	token    bigint      NOT NULL,
	time     timestamptz NOT NULL,
	kind     bytea       NOT NULL,
	owner    bytea       NOT NULL,
	data     bytea       NOT NULL,
	versions bigint[],             -- of the write's records, on its first event
	PRIMARY KEY (run, seq)
);

CREATE UNIQUE INDEX events_position ON tapestore.events (position);

CREATE TABLE tapestore.records (
	run         bigint      NOT NULL,
	version     bigint      NOT NULL,
	created_seq bigint      NOT NULL,
	updated_seq bigint      NOT NULL,
	created     timestamptz NOT NULL,
	updated     timestamptz NOT NULL,
	places      smallint    NOT NULL, -- how many rows it has in places
	key         bytea       NOT NULL,
	value       bytea       NOT NULL,
	PRIMARY KEY (run, key)
) WITH (fillfactor = 80);

-- The cross-run queues.
CREATE TABLE tapestore.places (
	at      timestamptz NOT NULL,
	written timestamptz NOT NULL,
	run     bigint      NOT NULL,
	name    bytea       NOT NULL,
	key     bytea       NOT NULL,
	PRIMARY KEY (name, at, written, run, key)
);

CREATE INDEX places_of_record ON tapestore.places (run, key);

-- The results of writes that carried an id, or had no event to carry their nonce.
-- The last few hundred of each run stay.
CREATE TABLE tapestore.batches (
	run       bigint      NOT NULL,
	n         bigint      NOT NULL, -- counts the run's rows
	first_seq bigint      NOT NULL,
	last_seq  bigint      NOT NULL,
	at        timestamptz NOT NULL,
	nonce     bigint      NOT NULL, -- of the write
	id        bytea       NOT NULL, -- 'b' and the batch's id, or 'n' and the nonce
	versions  bigint[]    NOT NULL,
	whole     bytea,                -- names the commit over several runs that it was part of, if one of them had an id
	PRIMARY KEY (run, id)
);
