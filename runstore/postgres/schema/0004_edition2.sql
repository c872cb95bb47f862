-- The second edition of the contract: guards by the last token, handoffs, progress, results of
-- grants and releases, tokens of records, and runs that are not listed.
--
-- The functions of the former version are dropped, not kept beside the new ones: each
-- program calls a function with the parameters that it knows, so the server refuses the calls
-- of a former program, and applies nothing of them.
DROP FUNCTION tapestore.write;
DROP FUNCTION tapestore.settle;

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

CREATE OR REPLACE FUNCTION tapestore.tell(verdict integer, now timestamptz, first_seq bigint, last_seq bigint, versions bigint[],
	r tapestore.runs, epoch bigint) RETURNS tapestore.answer LANGUAGE sql IMMUTABLE AS $$
	SELECT verdict::smallint, now, first_seq, last_seq, versions, r.status, r.created, r.runnable, r.last_seq, r.token, r.expires,
		r.grant_state, r.is_strict, r.grant_id, r.owner, r.reactor, r.preempted_from, r.preempt_reason, epoch,
		NULL::bigint, NULL::bytea, NULL::bigint, NULL::timestamptz, NULL::bigint, NULL::timestamptz,
		r.ttl, r.granted, r.renewed, r.max_stall, r.progressed, r.former_end, r.unlisted,
		NULL::bigint, NULL::bigint, NULL::bigint, NULL::smallint
$$;

-- first_result is tell for a write that was applied before: its remembered result.
CREATE FUNCTION tapestore.first_result(b tapestore.batches, r tapestore.runs, epoch bigint) RETURNS tapestore.answer LANGUAGE plpgsql STABLE AS $$
DECLARE
	a tapestore.answer := tapestore.tell(2, b.at, b.first_seq, b.last_seq, b.versions, r, epoch);
BEGIN
	a.result_token := b.token; a.result_former := b.former_end;
	RETURN a;
END $$;

-- with_summary adds the summary of a run to an answer.
CREATE FUNCTION tapestore.with_summary(a tapestore.answer, run_no bigint) RETURNS tapestore.answer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	SELECT version, value, created_seq, records.created, updated_seq, updated, created_token, updated_token
	INTO a.summary_version, a.summary_value, a.summary_created_seq, a.summary_created, a.summary_updated_seq, a.summary_updated,
		a.summary_created_token, a.summary_updated_token
	FROM tapestore.records WHERE run = run_no AND key = 'run';
	RETURN a;
END $$;

-- Every write but the append of events under a fence and the heartbeat goes
-- through here: it locks the run, checks every guard and makes every change, or
-- makes none and says why. Each statement of a VOLATILE function in READ COMMITTED
-- has a snapshot of its own, so what follows the lock sees what is current under it:
-- https://www.postgresql.org/docs/current/xfunc-volatility.html
CREATE FUNCTION tapestore.write(
	op             smallint, -- 0 commit, 1 create, 2 acquire, 3 release, 4 renew
	run_id         bytea,
	this_nonce     bigint,
	result_name    bytea,    -- under which the result is remembered (rules.BatchResult and its like); NULL: none
	fence_token    bigint,   -- NULL: no fence
	fence_grant    bytea,
	fence_owner    bytea,
	want_token     bigint,   -- the token of the last grant; NULL: any
	want_seq       bigint,   -- NULL: any
	want_statuses  integer[],
	want_keys      bytea[],
	want_versions  bigint[],
	lease_owner    bytea,    -- NULL: no grant
	lease_reactor  bytea,
	lease_ttl      bigint,   -- microseconds, as all durations here
	lease_strict   boolean,
	lease_stall    bigint,   -- 0: no bound
	lease_grant    bytea,
	lease_preempt  bytea,    -- NULL: take no live lease, but for its holder's fence
	lowest         bigint,   -- the first of this transaction's positions that is this run's
	kinds          bytea[],
	payloads       bytea[],
	record_keys    bytea[],
	record_values  bytea[],  -- a NULL deletes
	record_events  integer[],
	place_records  integer[], -- which record, from 1
	place_names    bytea[],
	place_times    timestamptz[],
	place_afters   bigint[],
	new_status     integer,
	set_runnable   boolean,
	runnable_at    timestamptz,
	runnable_after bigint,
	ends_grant     boolean,
	purges         boolean,
	is_unlisted    boolean,
	one_instant    boolean   -- as part of the commit that lock_runs began: on its clock, and only if it was not made before
) RETURNS tapestore.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r         tapestore.runs;
	b         tapestore.batches;
	s         tapestore.store;
	was       tapestore.records;
	clock     timestamptz;
	writer    bigint := coalesce(fence_token, 0);
	writer_of bytea := coalesce(fence_owner, '');
	appended  integer := coalesce(cardinality(kinds), 0);
	first_seq bigint := 0;
	present   bigint[];
	versions  bigint[] := '{}';
	explains  bigint;
	progress  boolean := fence_token IS NOT NULL AND coalesce(cardinality(kinds), 0) + coalesce(cardinality(record_keys), 0) > 0; -- I13
	highest   bigint;
	was_granted boolean;
	a         tapestore.answer;
BEGIN
	IF op = 1 THEN
		INSERT INTO tapestore.runs AS new (last_seq, token, version_floor, batches, created, status, grant_state, purged,
			is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
		VALUES (0, 0, 0, 0, clock_timestamp(), 0, 0, true, false, run_id, '', '', '', '', '') ON CONFLICT (id) DO NOTHING;
	ELSIF op = 2 AND lease_preempt IS NULL AND fence_token IS NULL THEN
		-- A contender that sees a live lease does not queue for the row. The holder, which
		-- hands its lease off under its fence, is no contender.
		SELECT * INTO r FROM tapestore.runs WHERE id = run_id AND NOT purged AND grant_state = 1;
		clock := clock_timestamp();
		IF r.expires > clock AND r.grant_id <> lease_grant -- held, or the request's grant is a former one
			AND NOT EXISTS (SELECT FROM tapestore.batches WHERE run = r.no AND id = result_name)
		THEN
			RETURN tapestore.tell(0, clock, NULL, NULL, NULL, r, (SELECT store.epoch FROM tapestore.store));
		END IF;
	END IF;

	SELECT * INTO r FROM tapestore.runs WHERE id = run_id FOR NO KEY UPDATE;
	SELECT * INTO s FROM tapestore.store;
	clock := CASE WHEN one_instant THEN current_setting('tape.clock')::timestamptz ELSE clock_timestamp() END;
	IF (CASE WHEN one_instant THEN current_setting('tape.made')::boolean END) THEN
		-- Also where the run is gone, or has forgotten: then there is no result.
		SELECT * INTO b FROM tapestore.batches WHERE run = r.no AND id = result_name;
		RETURN tapestore.first_result(b, r, s.epoch);
	END IF;
	IF r.no IS NULL OR (r.purged AND op <> 1) THEN
		RETURN tapestore.tell(3, clock, NULL, NULL, NULL, NULL, s.epoch);
	END IF;
	IF this_nonce = ANY (r.given_up) THEN
		RETURN tapestore.tell(4, clock, NULL, NULL, NULL, r, s.epoch);
	END IF;

	IF result_name IS NOT NULL THEN
		SELECT * INTO b FROM tapestore.batches WHERE run = r.no AND id = result_name;
		IF FOUND AND (op <> 3 OR b.token = fence_token) THEN
			a := tapestore.first_result(b, r, s.epoch);
			IF op = 1 THEN
				a := tapestore.with_summary(a, r.no);
			END IF;
			RETURN a;
		END IF;
	END IF;

	-- A grant's id names that grant for ever: it never becomes that of another.
	IF op = 2 OR (op = 1 AND r.purged AND lease_grant IS NOT NULL) THEN
		was_granted := (r.grant_state <> 0 AND r.grant_id = lease_grant) OR EXISTS (SELECT FROM tapestore.grants
			WHERE run = r.no AND tapestore.former(lease_grant) = ANY (grants.former));
		IF was_granted THEN
			RETURN tapestore.tell(CASE WHEN op = 2 AND r.grant_state = 1 AND r.grant_id = lease_grant THEN 2 ELSE 0 END,
				clock, NULL, NULL, NULL, r, s.epoch);
		END IF;
	END IF;

	IF op = 1 AND NOT r.purged THEN
		RETURN tapestore.with_summary(tapestore.tell(CASE WHEN r.grant_state = 1 AND r.grant_id = lease_grant THEN 2 ELSE 0 END,
			clock, NULL, NULL, NULL, r, s.epoch), r.no);
	END IF;
	IF op = 3 AND r.grant_state = 2 AND r.token = fence_token AND r.grant_id = fence_grant THEN
		RETURN tapestore.tell(2, clock, 0, r.last_seq, '{}', r, s.epoch);
	END IF;

	-- The guards, in the order of package rules, which explains a refusal.
	IF (fence_token IS NOT NULL AND NOT (r.grant_state = 1 AND r.token = fence_token AND r.grant_id = fence_grant
			AND r.owner = fence_owner AND (NOT r.is_strict OR r.expires > clock)))
		OR (op = 4 AND NOT progress AND r.max_stall > 0 AND clock > r.progressed + r.max_stall * interval '1 microsecond')
		OR (op = 2 AND lease_preempt IS NULL AND fence_token IS NULL AND r.grant_state = 1 AND r.expires > clock)
		OR want_token <> r.token
		OR NOT coalesce(r.status = ANY (want_statuses), true)
		OR want_seq <> r.last_seq + 1
	THEN
		RETURN tapestore.tell(0, clock, NULL, NULL, NULL, r, s.epoch);
	END IF;
	IF want_keys IS NOT NULL THEN
		SELECT array_agg(coalesce(records.version, 0) ORDER BY w.i) INTO present
		FROM unnest(want_keys) WITH ORDINALITY AS w (key, i) LEFT JOIN tapestore.records ON records.run = r.no AND records.key = w.key;
		IF present <> want_versions THEN
			RETURN tapestore.tell(0, clock, NULL, NULL, present, r, s.epoch);
		END IF;
	END IF;

	IF op = 1 THEN
		r.purged := false; r.status := new_status; r.created := clock; r.last_seq := 0; r.unlisted := is_unlisted;
	END IF;
	IF lease_owner IS NOT NULL THEN
		r.former_end := CASE r.grant_state WHEN 0 THEN 0 WHEN 2 THEN 1 WHEN 3 THEN 5
			ELSE CASE WHEN fence_token IS NOT NULL THEN 2 WHEN r.expires > clock THEN 4 ELSE 3 END END;
		IF r.grant_state <> 0 THEN
			INSERT INTO tapestore.grants AS g (run, former) VALUES (r.no, ARRAY[tapestore.former(r.grant_id)])
			ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64];
		END IF;
		IF r.former_end = 4 THEN
			r.preempted_from := r.owner; r.preempt_reason := lease_preempt;
		ELSE
			r.preempted_from := ''; r.preempt_reason := '';
		END IF;
		r.token := greatest(r.token, s.epoch << 40) + 1;
		r.grant_state := 1; r.grant_id := lease_grant; r.owner := lease_owner; r.reactor := lease_reactor;
		r.is_strict := lease_strict; r.expires := clock + lease_ttl * interval '1 microsecond';
		r.ttl := lease_ttl; r.max_stall := lease_stall; r.granted := clock; r.renewed := clock; r.progressed := clock;
		writer := r.token; writer_of := lease_owner;
	END IF;

	IF op = 4 THEN
		r.expires := greatest(r.expires, clock + lease_ttl * interval '1 microsecond');
		r.ttl := lease_ttl; r.renewed := clock;
	END IF;
	IF progress THEN
		r.progressed := clock;
	END IF;

	IF appended > 0 THEN
		first_seq := r.last_seq + 1;
	END IF;
	FOR i IN 1 .. coalesce(cardinality(record_keys), 0) LOOP
		explains := CASE WHEN appended = 0 THEN r.last_seq ELSE first_seq + record_events[i] END;
		IF record_values[i] IS NULL THEN
			DELETE FROM tapestore.records WHERE run = r.no AND key = record_keys[i] RETURNING * INTO was;
			IF FOUND THEN
				r.version_floor := greatest(r.version_floor, was.version);
			END IF;
			versions := versions || 0::bigint;
		ELSE
			SELECT * INTO was FROM tapestore.records WHERE run = r.no AND key = record_keys[i];
			IF was.version IS NULL THEN
				-- A new record starts above every version that a deleted one of the run had.
				INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
				VALUES (r.no, r.version_floor + 1, explains, explains, clock, clock, writer, writer,
					coalesce(cardinality(array_positions(place_records, i)), 0), record_keys[i], record_values[i]);
				versions := versions || (r.version_floor + 1);
			ELSE
				UPDATE tapestore.records SET version = version + 1, updated_seq = explains, updated = clock, updated_token = writer, value = record_values[i],
					places = coalesce(cardinality(array_positions(place_records, i)), 0)
				WHERE run = r.no AND key = record_keys[i];
				versions := versions || (was.version + 1);
			END IF;
		END IF;
		IF was.places > 0 THEN
			DELETE FROM tapestore.places WHERE run = r.no AND key = record_keys[i];
		END IF;
	END LOOP;
	IF place_records IS NOT NULL THEN
		INSERT INTO tapestore.places (at, written, run, name, key)
		SELECT coalesce(p.at, clock + p.after * interval '1 microsecond'), clock, r.no, p.name, record_keys[p.record]
		FROM unnest(place_records, place_names, place_times, place_afters) AS p (record, name, at, after);
	END IF;
	IF appended > 0 THEN
		r.last_position := greatest(r.last_position,
			s.position_base + ((pg_current_xact_id()::text::bigint - s.xid_base) << 14) + lowest - 1);
		INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
		SELECT r.no, r.last_seq + e.i, r.last_position + e.i,
			CASE WHEN e.i = 1 THEN this_nonce END, writer, clock, e.kind, writer_of, e.data,
			CASE WHEN e.i = 1 AND versions <> '{}' THEN versions END
		FROM unnest(kinds, payloads) WITH ORDINALITY AS e (kind, data, i);
		r.last_seq := r.last_seq + appended;
		r.last_position := r.last_position + appended;
	END IF;

	IF op <> 1 AND new_status IS NOT NULL THEN
		r.status := new_status;
	END IF;
	IF set_runnable THEN
		r.runnable := coalesce(runnable_at, clock + runnable_after * interval '1 microsecond');
	END IF;
	IF ends_grant AND r.grant_state = 1 THEN
		r.grant_state := CASE WHEN fence_token IS NULL THEN 3 ELSE 2 END;
	END IF;
	IF purges THEN
		SELECT greatest(r.version_floor, max(version)) INTO r.version_floor FROM tapestore.records WHERE run = r.no;
		SELECT max(position) INTO highest FROM tapestore.events WHERE run = r.no;
		DELETE FROM tapestore.events WHERE run = r.no;
		DELETE FROM tapestore.places WHERE run = r.no;
		DELETE FROM tapestore.records WHERE run = r.no;
		DELETE FROM tapestore.batches WHERE run = r.no;
		-- Last, for every purge waits for this row.
		UPDATE tapestore.store SET last_purged = highest WHERE highest > last_purged;
		r.purged := true; r.runnable := NULL;
		IF r.grant_state = 1 THEN
			r.grant_state := 3;
		END IF;
	ELSIF result_name IS NOT NULL OR appended = 0 AND (op IN (0, 3, 4) OR versions <> '{}') THEN
		INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions, whole, token, former_end)
		VALUES (r.no, r.batches, first_seq, r.last_seq, clock, this_nonce, coalesce(result_name, 'n'::bytea || int8send(this_nonce)), versions,
			CASE WHEN one_instant THEN decode(nullif(current_setting('tape.whole'), ''), 'hex') END, writer, r.former_end)
		-- A grant's id may come back once it is no longer recognised: the last result counts.
		ON CONFLICT (run, id) DO UPDATE SET n = excluded.n, first_seq = excluded.first_seq, last_seq = excluded.last_seq, at = excluded.at,
			nonce = excluded.nonce, versions = excluded.versions, whole = excluded.whole, token = excluded.token, former_end = excluded.former_end;
		r.batches := r.batches + 1;
		IF r.batches % 128 = 0 THEN
			-- Forget the oldest, keep at least 256 rows and the last 128 that have a name: rows
			-- of nonces ('n') do not push ids out.
			DELETE FROM tapestore.batches WHERE run = r.no AND n < r.batches - 256 AND (get_byte(id, 0) = 110 OR n < (
				SELECT named.n FROM tapestore.batches AS named WHERE named.run = r.no AND get_byte(named.id, 0) <> 110
				ORDER BY named.n DESC OFFSET 127 LIMIT 1));
		END IF;
	END IF;
	UPDATE tapestore.runs SET last_seq = r.last_seq, last_position = r.last_position, token = r.token, version_floor = r.version_floor, batches = r.batches,
		created = r.created, runnable = r.runnable, expires = r.expires, status = r.status,
		recent = CASE WHEN op IN (1, 2) OR purges THEN (ARRAY[this_nonce, r.token] || recent)[1:32] ELSE recent END,
		grant_state = r.grant_state, purged = r.purged, is_strict = r.is_strict, grant_id = r.grant_id, owner = r.owner,
		reactor = r.reactor, preempted_from = r.preempted_from, preempt_reason = r.preempt_reason,
		ttl = r.ttl, granted = r.granted, renewed = r.renewed, max_stall = r.max_stall, progressed = r.progressed,
		former_end = r.former_end, unlisted = r.unlisted
	WHERE no = r.no;
	RETURN tapestore.tell(1, clock, first_seq, r.last_seq, versions, r, s.epoch);
END $$;

-- A commit over several runs takes the locks of all in one order, so that two such
-- commits cannot wait for each other, and then has one clock. If any of the runs
-- remembers its batch as part of this whole, the commit was made before, and the writes
-- that follow change nothing. What they have to know lasts as long as the transaction.
CREATE OR REPLACE FUNCTION tapestore.lock_runs(run_ids bytea[], batch_ids bytea[], this_whole bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	made boolean := false;
BEGIN
	PERFORM FROM tapestore.runs WHERE id = ANY (run_ids) ORDER BY id FOR NO KEY UPDATE;
	IF this_whole IS NOT NULL THEN
		FOR i IN 1 .. cardinality(run_ids) LOOP
			EXIT WHEN made;
			made := EXISTS (SELECT FROM tapestore.runs JOIN tapestore.batches ON batches.run = runs.no
				WHERE runs.id = run_ids[i] AND batches.id = batch_ids[i] AND batches.whole = this_whole);
		END LOOP;
	END IF;
	PERFORM set_config('tape.clock', to_jsonb(clock_timestamp()) #>> '{}', true),
		set_config('tape.made', made::text, true), set_config('tape.whole', coalesce(encode(this_whole, 'hex'), ''), true);
END $$;

-- What became of a write whose reply was lost: it was applied (and is never
-- again), or it is given up: a late copy of it finds its nonce and is refused.
-- sent is how long ago it was first sent.
CREATE FUNCTION tapestore.settle(run_id bytea, lost_nonce bigint, result_name bytea, sent bigint, op smallint)
RETURNS tapestore.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r     tapestore.runs;
	b     tapestore.batches;
	e     record;
	a     tapestore.answer;
	epoch bigint;
	looked integer := 0;
BEGIN
	INSERT INTO tapestore.runs AS new (last_seq, token, version_floor, batches, created, status, grant_state, purged,
		is_strict, id, grant_id, owner, reactor, preempted_from, preempt_reason)
	VALUES (0, 0, 0, 0, clock_timestamp(), 0, 0, true, false, run_id, '', '', '', '', '') ON CONFLICT (id) DO NOTHING;
	SELECT * INTO r FROM tapestore.runs WHERE id = run_id FOR NO KEY UPDATE;
	SELECT store.epoch INTO epoch FROM tapestore.store;
	FOR i IN REVERSE coalesce(cardinality(r.recent), 0) - 1 .. 1 BY 2 LOOP
		IF r.recent[i] = lost_nonce THEN
			IF r.token <> r.recent[i + 1] THEN -- it was granted, and the lease then lost to another
				r.token := r.recent[i + 1];
				r.grant_state := 0;
				r.expires := clock_timestamp();
			END IF;
			SELECT * INTO b FROM tapestore.batches WHERE run = r.no AND id = coalesce(result_name, 'n'::bytea || int8send(lost_nonce));
			IF FOUND THEN
				a := tapestore.first_result(b, r, epoch);
				a.verdict := 1;
				RETURN tapestore.with_summary(a, r.no);
			END IF;
			SELECT * INTO e FROM tapestore.events WHERE run = r.no AND seq = 1 AND nonce = lost_nonce;
			IF FOUND THEN -- of a creation without a lease
				a := tapestore.tell(1, e.time, 1, NULL, coalesce(e.versions, '{}'), r, epoch);
			ELSE
				a := tapestore.tell(1, CASE WHEN r.purged THEN clock_timestamp() WHEN op = 1 THEN r.created ELSE r.granted END,
					0, r.last_seq, '{}', r, epoch);
			END IF;
			RETURN tapestore.with_summary(a, r.no);
		END IF;
	END LOOP;
	SELECT * INTO b FROM tapestore.batches
	WHERE run = r.no AND id = coalesce(result_name, 'n'::bytea || int8send(lost_nonce));
	IF FOUND AND (op <> 3 OR b.nonce = lost_nonce) THEN -- tapestore.write compares the token of a release
		a := tapestore.first_result(b, r, epoch);
		a.verdict := CASE WHEN b.nonce = lost_nonce THEN 1 ELSE 2 END;
		RETURN CASE WHEN op = 1 THEN tapestore.with_summary(a, r.no) ELSE a END;
	END IF;
	-- Its events, if any, are not older than it is; an hour is for a clock that steps.
	FOR e IN SELECT * FROM tapestore.events WHERE run = r.no ORDER BY seq DESC LOOP
		looked := looked + 1;
		EXIT WHEN looked > 10000 AND e.time < clock_timestamp() - sent * interval '1 microsecond' - interval '1 hour';
		IF e.nonce = lost_nonce THEN
			IF e.token > 0 AND e.token <> r.token THEN -- it may have been a grant, and the lease was lost since
				r.token := e.token;
				r.grant_state := 0;
				r.expires := clock_timestamp();
			END IF;
			RETURN tapestore.tell(1, e.time, e.seq, NULL, coalesce(e.versions, '{}'), r, epoch);
		END IF;
	END LOOP;
	UPDATE tapestore.runs SET given_up = (ARRAY[lost_nonce] || given_up)[1:128] WHERE no = r.no;
	-- Rows of its kind, with a name or of a nonce, from the time since it was sent were
	-- forgotten: its own may be among them.
	RETURN tapestore.tell(CASE WHEN r.batches > 256 AND coalesce((SELECT min(at) FROM tapestore.batches
			WHERE run = r.no AND (get_byte(id, 0) = 110) = (result_name IS NULL)),
			CASE WHEN result_name IS NULL THEN 'infinity' ELSE '-infinity' END::timestamptz)
		> clock_timestamp() - sent * interval '1 microsecond' THEN 5 ELSE 4 END, clock_timestamp(), NULL, NULL, NULL, r, epoch);
END $$;

-- A position that clients in JavaScript could not tell from the next is refused, with the
-- whole transaction (runstore.MaxPosition). Events that are there already are not looked at.
ALTER TABLE tapestore.events ADD CONSTRAINT events_position_limit CHECK (position < 9007199254740992) NOT VALID;

-- lost_positions is how many positions a lost history of the store can have given out in a
-- time: 50,000 transactions a second, of 2^14 positions each. Five minutes are added, for
-- clocks that differ and for a transaction that waited between its number and the time of
-- its events. 2^49 positions are the most: eight days at that rate.
CREATE FUNCTION tapestore.lost_positions(lost interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT least((greatest(extract(epoch FROM lost), 0) + 300) * 50000, 1::bigint << 35)::bigint << 14
$$;

-- A new epoch ends every grant, and moves the feed's positions on by more than a lost
-- history of the store can have given out. The lock waits for the writes
-- under way and keeps out those to come, so that none has read the old epoch; reads
-- go on. by_itself: only if the store does not belong to that incarnation already,
-- so that of several handles that see a new one at once, one raises the epoch.
--
-- A lost history and this one parted after everything that is stored here. So it had at most
-- the positions that follow a known one in the time since that one was given out. The known
-- one is that of the last event or, if it is later, the base of the current epoch, at the time
-- of its beginning.
-- In the same cluster there is a second bound: no transaction of the common history has a
-- higher number than this one, and that history goes on at least to the latest time that is
-- stored. So a failover of a store without new events costs little. The lower bound is taken.
CREATE OR REPLACE FUNCTION tapestore.raise_epoch(why bytea, new_cluster text, new_timeline bigint, by_itself boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	s tapestore.store;
	steps bigint;
	clock timestamptz;
	known bigint;
	since timestamptz;
	next  bigint;
BEGIN
	LOCK TABLE tapestore.runs IN EXCLUSIVE MODE;
	SELECT * INTO s FROM tapestore.store FOR UPDATE;
	IF by_itself AND s.cluster = new_cluster AND s.timeline = new_timeline THEN
		RETURN 0; -- another handle was first
	END IF;
	-- A timeline between may have had an epoch that was lost with it.
	steps := CASE WHEN s.cluster = new_cluster THEN greatest(new_timeline - s.timeline, 1) ELSE 1 END;
	IF s.epoch + steps > 8191 THEN
		RETURN s.epoch + steps; -- refused by the caller, which knows the limit
	END IF;
	clock := clock_timestamp();
	since := greatest((SELECT time FROM tapestore.events ORDER BY position DESC LIMIT 1),
		(SELECT at FROM tapestore.epochs ORDER BY epoch DESC LIMIT 1), (SELECT min(at) FROM tapestore.migrations));
	known := greatest(s.position_base, s.last_purged, (SELECT max(position) FROM tapestore.events));
	next := known + steps * tapestore.lost_positions(clock - since);
	IF s.cluster = new_cluster THEN
		since := greatest(since, pg_last_xact_replay_timestamp(), (SELECT max(greatest(created, renewed, granted, progressed)) FROM tapestore.runs));
		next := least(next, greatest(known, s.position_base + ((pg_current_xact_id()::text::bigint - s.xid_base) << 14))
			+ steps * tapestore.lost_positions(clock - since));
	END IF;
	-- From 2^53 on there is no position for an event any more, but reads and leases go on.
	next := greatest(known, least(greatest((s.epoch + steps) << 40, next), 1::bigint << 53));
	INSERT INTO tapestore.epochs (epoch, at, reason) VALUES (s.epoch + steps, clock, why);
	UPDATE tapestore.runs SET grant_state = 3 WHERE grant_state = 1;
	UPDATE tapestore.store SET epoch = s.epoch + steps,
		cluster = CASE WHEN new_cluster = '' THEN s.cluster ELSE new_cluster END, -- '': this role may not see it
		timeline = CASE WHEN new_cluster = '' THEN s.timeline ELSE new_timeline END,
		xid_base = pg_current_xact_id()::text::bigint, position_base = next;
	RETURN s.epoch + steps;
END $$;
