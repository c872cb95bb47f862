-- A term of a run: its grant and how that ended. how is a runstore.GrantEnd. A time that is not known
-- is NULL.
CREATE TYPE tapestore.term AS (
	token   bigint,
	granted timestamptz,
	expires timestamptz, -- as renewed
	ended   timestamptz,
	how     smallint,
	owner   bytea,
	reactor bytea,
	reason  bytea        -- of the grant that preempted it
);

-- The terms of the grants in former, the newest first: at most 31, because that of the last grant is
-- in runs, and fewer where they would take more than 4 KiB. NULL: none.
ALTER TABLE tapestore.grants ADD COLUMN terms tapestore.term[];

-- When the last grant ended. A time before granted is that of an earlier grant: a program of version
-- 7, which does not know this column, made and ended the last one. No index has it.
ALTER TABLE tapestore.runs ADD COLUMN ended timestamptz;
