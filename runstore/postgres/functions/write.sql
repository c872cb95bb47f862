-- write makes every write that has no statement for it alone (README.md): it locks the run, checks
-- every guard and makes every change, or makes none and says why. Each statement of a VOLATILE function
-- in READ COMMITTED has another snapshot, so what follows the lock sees what is current under it:
-- https://www.postgresql.org/docs/current/xfunc-volatility.html
CREATE OR REPLACE FUNCTION tapestore.write(
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
	judged    timestamptz; -- when a strict lease is looked at; clock may be earlier
	writer    bigint := coalesce(fence_token, 0);
	writer_of bytea := coalesce(fence_owner, '');
	appended  integer := coalesce(cardinality(kinds), 0);
	first_seq bigint := 0;
	present   bigint[];
	versions  bigint[] := '{}';
	explains  bigint;
	progress  boolean := fence_token IS NOT NULL AND coalesce(cardinality(kinds), 0) + coalesce(cardinality(record_keys), 0) > 0; -- I13
	was_no    bigint;
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
	judged := clock_timestamp();
	clock := CASE WHEN one_instant THEN current_setting('tape.clock')::timestamptz ELSE judged END;
	IF (CASE WHEN one_instant THEN current_setting('tape.made')::boolean END) THEN
		-- Also where the run is gone, or has forgotten: then there is no result.
		SELECT * INTO b FROM tapestore.batches WHERE run = r.no AND id = result_name;
		RETURN tapestore.first_result(b, r, s.epoch);
	END IF;
	IF r.no IS NULL OR (r.purged AND op <> 1) THEN
		RETURN tapestore.tell(3, clock, NULL, NULL, NULL, NULL, s.epoch);
	END IF;
	IF this_nonce = ANY (r.void_nonces) THEN
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
			AND r.owner = fence_owner AND (NOT r.is_strict OR r.expires > judged)))
		OR (op = 4 AND NOT progress AND r.max_stall > 0 AND clock > r.progressed + r.max_stall * interval '1 microsecond')
		OR (op = 2 AND lease_preempt IS NULL AND fence_token IS NULL AND r.grant_state = 1 AND r.expires > clock)
		OR want_token <> r.token
		OR NOT coalesce(r.status = ANY (want_statuses), true)
		OR want_seq <> r.last_seq + 1
	THEN
		RETURN tapestore.tell(0, judged, NULL, NULL, NULL, r, s.epoch);
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
			INSERT INTO tapestore.grants AS g (run, former, terms) VALUES (r.no, ARRAY[tapestore.former(r.grant_id)],
				ARRAY[ROW(r.token, r.granted, r.expires,
					CASE WHEN r.grant_state = 1 THEN clock WHEN r.ended >= r.granted THEN r.ended END,
					r.former_end, r.owner, r.reactor, CASE WHEN r.former_end = 4 THEN lease_preempt ELSE '' END)::tapestore.term])
			ON CONFLICT (run) DO UPDATE SET former = (excluded.former || g.former)[1:64],
				terms = tapestore.with_term(g.terms, excluded.terms[1]);
		END IF;
		IF r.former_end = 4 THEN
			r.preempted_from := r.owner; r.preempt_reason := lease_preempt;
		ELSE
			r.preempted_from := ''; r.preempt_reason := '';
		END IF;
		r.token := greatest(r.token, s.epoch << 40) + 1;
		r.ended := NULL; r.grant_state := 1; r.grant_id := lease_grant; r.owner := lease_owner; r.reactor := lease_reactor;
		r.is_strict := lease_strict; r.expires := clock + lease_ttl * interval '1 microsecond'; r.indexed_expires := r.expires;
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
		IF r.last_position >= 9007199254740992 THEN
			RAISE 'no positions are left' USING ERRCODE = 'check_violation', CONSTRAINT = 'events_position_limit';
		END IF;
	END IF;

	IF op <> 1 AND new_status IS NOT NULL THEN
		r.status := new_status;
	END IF;
	IF set_runnable THEN
		r.runnable := coalesce(runnable_at, clock + runnable_after * interval '1 microsecond');
	END IF;
	IF ends_grant AND r.grant_state = 1 THEN
		r.grant_state := CASE WHEN fence_token IS NULL THEN 3 ELSE 2 END; r.ended := clock;
	END IF;
	IF purges THEN
		-- A write adds one to the version of a record, and to last_seq or batches.
		r.version_floor := r.version_floor + r.last_seq + r.batches;
		INSERT INTO tapestore.garbage (id, run, last_seq) VALUES (r.id, r.no, r.last_seq);
		was_no := r.no;
		UPDATE tapestore.runs SET no = DEFAULT WHERE no = was_no RETURNING no INTO r.no;
		UPDATE tapestore.grants SET run = r.no WHERE run = was_no;
		-- Last, for every purge waits for this row.
		UPDATE tapestore.store SET last_purged = r.last_position WHERE r.last_position > last_purged;
		r.purged := true; r.runnable := NULL;
		r.created := clock; -- of a purged run it is the time of the purge, see settle and sql/run_forgotten.sql
		IF r.grant_state = 1 THEN
			r.grant_state := 3; r.ended := clock;
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
		created = r.created, runnable = r.runnable, expires = r.expires, indexed_expires = r.indexed_expires, place = tapestore.place_of(r), status = r.status,
		recent = CASE WHEN op IN (1, 2) OR purges THEN (ARRAY[this_nonce, r.token] || recent)[1:32] ELSE recent END,
		grant_state = r.grant_state, ended = r.ended, purged = r.purged, is_strict = r.is_strict, grant_id = r.grant_id, owner = r.owner,
		reactor = r.reactor, preempted_from = r.preempted_from, preempt_reason = r.preempt_reason,
		ttl = r.ttl, granted = r.granted, renewed = r.renewed, max_stall = r.max_stall, progressed = r.progressed,
		former_end = r.former_end, unlisted = r.unlisted
	WHERE no = r.no;
	RETURN tapestore.tell(1, clock, first_seq, r.last_seq, versions, r, s.epoch);
END $$;
