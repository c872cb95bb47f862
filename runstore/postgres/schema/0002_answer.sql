-- What a statement answers: what became of the write, and the run's head.
CREATE TYPE tapestore.answer AS (
	verdict        smallint,    -- 0 refused, 1 applied, 2 applied before, 3 no such run, 4 given up before
	now            timestamptz, -- the store clock of the decision
	first_seq      bigint,
	last_seq       bigint,
	versions       bigint[],    -- of the records that were written; if refused, of those that were guarded
	status         integer,
	created        timestamptz,
	runnable       timestamptz,
	seq            bigint,
	token          bigint,
	expires        timestamptz,
	grant_state    smallint,
	is_strict      boolean,
	grant_id       bytea,
	owner          bytea,
	reactor        bytea,
	preempted_from bytea,
	preempt_reason bytea,
	epoch          bigint,
	-- The summary of a run that was to be created.
	summary_version     bigint,
	summary_value       bytea,
	summary_created_seq bigint,
	summary_created     timestamptz,
	summary_updated_seq bigint,
	summary_updated     timestamptz
);
