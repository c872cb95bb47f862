-- The second edition of the contract: guards by the last token, handoffs, progress, results of
-- grants and releases, tokens of records, and runs that are not listed.
--
-- The functions of the former version are dropped, not kept beside the new ones: each
-- program calls a function with the parameters that it knows, so the server refuses the calls
-- of a former program, and applies nothing of them.
DROP FUNCTION IF EXISTS tapestore.write;
DROP FUNCTION IF EXISTS tapestore.settle;

-- A former program appends and renews by statements of its own, which neither set progressed
-- nor look at max_stall. They name this column, so the server refuses them too.
ALTER TABLE tapestore.runs RENAME COLUMN voided TO given_up;

-- What a run shows of its current grant, beside its token and expiry. Of a grant that was made
-- before these columns were added the times are NULL: not known. No index has them.
ALTER TABLE tapestore.runs
	ADD COLUMN ttl        bigint   NOT NULL DEFAULT 0, -- microseconds, of the last grant or renewal
	ADD COLUMN granted    timestamptz,
	ADD COLUMN renewed    timestamptz,
	ADD COLUMN max_stall  bigint   NOT NULL DEFAULT 0, -- microseconds, 0: none
	ADD COLUMN progressed timestamptz,
	ADD COLUMN former_end smallint NOT NULL DEFAULT 0, -- runstore.GrantEnd
	ADD COLUMN unlisted   boolean  NOT NULL DEFAULT false;

DROP INDEX tapestore.runs_created;
CREATE INDEX runs_created ON tapestore.runs (created, no) WHERE NOT purged AND NOT unlisted;

-- The tokens under which a record was first and last changed, 0 for a change without a fence
-- or before these columns were added.
ALTER TABLE tapestore.records
	ADD COLUMN created_token bigint NOT NULL DEFAULT 0,
	ADD COLUMN updated_token bigint NOT NULL DEFAULT 0;

-- Results of grants and releases are remembered too, each under a letter and its id
-- (rules.BatchResult and its like).
ALTER TABLE tapestore.batches
	ADD COLUMN token      bigint   NOT NULL DEFAULT 0, -- of the grant that was made or released
	ADD COLUMN former_end smallint NOT NULL DEFAULT 0; -- of the grant before the one that was made

ALTER TYPE tapestore.answer
	ADD ATTRIBUTE ttl                   bigint,
	ADD ATTRIBUTE granted               timestamptz,
	ADD ATTRIBUTE renewed               timestamptz,
	ADD ATTRIBUTE max_stall             bigint,
	ADD ATTRIBUTE progressed            timestamptz,
	ADD ATTRIBUTE former_end            smallint,
	ADD ATTRIBUTE unlisted              boolean,
	ADD ATTRIBUTE summary_created_token bigint,
	ADD ATTRIBUTE summary_updated_token bigint,
	-- Of a remembered grant or release.
	ADD ATTRIBUTE result_token          bigint,
	ADD ATTRIBUTE result_former         smallint;
