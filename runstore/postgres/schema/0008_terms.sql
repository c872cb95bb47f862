-- A write locks its run, then reads and changes grants. The lock waits for such writes and keeps out
-- others, before anything is locked that they need: in the other order both would deadlock.
LOCK TABLE tapestore.runs IN ACCESS EXCLUSIVE MODE;

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

-- with_term returns the terms with t prepended, and without the oldest if there are too many. At least
-- four are kept, however long their names are.
CREATE FUNCTION tapestore.with_term(terms tapestore.term[], t tapestore.term) RETURNS tapestore.term[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	terms := (array_prepend(t, terms))[1:31];
	WHILE pg_column_size(terms) > 4096 AND cardinality(terms) > 4 LOOP
		terms := terms[1:cardinality(terms) - 1];
	END LOOP;
	RETURN terms;
END $$;

-- tapestore.write and tapestore.raise_epoch stay as they were but for the lines below.
DO $migration$
DECLARE
	body text;
	edit text[];
BEGIN
	FOREACH edit SLICE 1 IN ARRAY ARRAY[
		['tapestore.write', $$			INSERT INTO tapestore.grants AS g (run, former) VALUES (r.no, ARRAY[tapestore.former(r.grant_id)])
			ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64];
$$, $$			INSERT INTO tapestore.grants AS g (run, former, terms) VALUES (r.no, ARRAY[tapestore.former(r.grant_id)],
				ARRAY[ROW(r.token, r.granted, r.expires,
					CASE WHEN r.grant_state = 1 THEN clock WHEN r.ended >= r.granted THEN r.ended END,
					r.former_end, r.owner, r.reactor, CASE WHEN r.former_end = 4 THEN lease_preempt ELSE '' END)::tapestore.term])
			ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64],
				terms = tapestore.with_term(g.terms, excluded.terms[1]);
$$], ['tapestore.write', $$		r.grant_state := 1; r.grant_id := lease_grant;$$, $$		r.ended := NULL; r.grant_state := 1; r.grant_id := lease_grant;$$],
		['tapestore.write', $$		r.grant_state := CASE WHEN fence_token IS NULL THEN 3 ELSE 2 END;
$$, $$		r.grant_state := CASE WHEN fence_token IS NULL THEN 3 ELSE 2 END; r.ended := clock;
$$], ['tapestore.write', $$			r.grant_state := 3;
$$, $$			r.grant_state := 3; r.ended := clock;
$$], ['tapestore.write', $$		grant_state = r.grant_state, purged$$, $$		grant_state = r.grant_state, ended = r.ended, purged$$],
		['tapestore.raise_epoch', 'SET grant_state = 3, place = runnable WHERE grant_state = 1',
			'SET grant_state = 3, ended = clock, place = runnable WHERE grant_state = 1']
	] LOOP
		body := pg_get_functiondef(edit[1]::regproc);
		IF strpos(body, edit[2]) = 0 THEN
			RAISE '% has no %', edit[1], edit[2];
		END IF;
		EXECUTE replace(body, edit[2], edit[3]);
	END LOOP;
END $migration$;
