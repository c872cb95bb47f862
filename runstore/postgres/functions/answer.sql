-- tell returns the answer for a verdict and a run, without what only some writes return.
CREATE OR REPLACE FUNCTION tapestore.tell(verdict integer, now timestamptz, first_seq bigint, last_seq bigint, versions bigint[],
	r tapestore.runs, epoch bigint) RETURNS tapestore.answer LANGUAGE sql IMMUTABLE AS $$
	SELECT verdict::smallint, now, first_seq, last_seq, versions, r.status, r.created, r.runnable, r.last_seq, r.token, r.expires,
		r.grant_state, r.is_strict, r.grant_id, r.owner, r.reactor, r.preempted_from, r.preempt_reason, epoch,
		NULL::bigint, NULL::bytea, NULL::bigint, NULL::timestamptz, NULL::bigint, NULL::timestamptz,
		r.ttl, r.granted, r.renewed, r.max_stall, r.progressed, r.former_end, r.unlisted,
		NULL::bigint, NULL::bigint, NULL::bigint, NULL::smallint
$$;

-- first_result returns the answer for a write that was applied before: its stored result.
CREATE OR REPLACE FUNCTION tapestore.first_result(b tapestore.batches, r tapestore.runs, epoch bigint) RETURNS tapestore.answer LANGUAGE plpgsql STABLE AS $$
DECLARE
	a tapestore.answer := tapestore.tell(2, b.at, b.first_seq, b.last_seq, b.versions, r, epoch);
BEGIN
	a.result_token := b.token; a.result_former := b.former_end;
	RETURN a;
END $$;

-- with_summary adds the summary of a run to an answer.
CREATE OR REPLACE FUNCTION tapestore.with_summary(a tapestore.answer, run_no bigint) RETURNS tapestore.answer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	SELECT version, value, created_seq, records.created, updated_seq, updated, created_token, updated_token
	INTO a.summary_version, a.summary_value, a.summary_created_seq, a.summary_created, a.summary_updated_seq, a.summary_updated,
		a.summary_created_token, a.summary_updated_token
	FROM tapestore.records WHERE run = run_no AND key = 'run';
	RETURN a;
END $$;

-- refusal returns why a statement was refused that checks its fence in a WHERE clause. It is VOLATILE,
-- so that it sees what was committed while that statement waited for the row.
CREATE OR REPLACE FUNCTION tapestore.refusal(run_id bytea) RETURNS jsonb LANGUAGE plpgsql VOLATILE
SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
DECLARE
	r tapestore.runs;
BEGIN
	SELECT * INTO r FROM tapestore.runs WHERE id = run_id AND NOT purged;
	RETURN to_jsonb(tapestore.tell(CASE WHEN r.no IS NULL THEN 3 ELSE 0 END, clock_timestamp(), NULL, NULL, NULL,
		r, (SELECT store.epoch FROM tapestore.store)));
END $$;

-- require_applied raises an error if a write was not applied: of a commit over several runs every batch must
-- be applied, or the transaction is rolled back. The error carries the answer of the one that was refused,
-- with a hash of the grant's id, which is secret, because the log has it.
CREATE OR REPLACE FUNCTION tapestore.require_applied(a tapestore.answer) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
BEGIN
	IF a.verdict NOT IN (1, 2) THEN
		RAISE EXCEPTION 'refused' USING ERRCODE = 'TS001',
			DETAIL = (to_jsonb(a) || jsonb_build_object('grant_id', tapestore.former(a.grant_id)))::text;
	END IF;
	RETURN true;
END $$;

-- demand is what programs up to version 8 call instead of require_applied. They expect an MD5, which a server
-- in FIPS mode does not compute.
CREATE OR REPLACE FUNCTION tapestore.demand(a tapestore.answer) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
BEGIN
	IF a.verdict NOT IN (1, 2) THEN
		RAISE EXCEPTION 'refused' USING ERRCODE = 'TS001', 
			DETAIL = (to_jsonb(a) || jsonb_build_object('grant_id', md5(a.grant_id)))::text; -- the log has it, and a grant's id is secret
	END IF;
	RETURN true;
END $$;
