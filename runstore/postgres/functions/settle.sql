-- settle decides the outcome of a write whose reply was lost: it was applied, or it is given up, and then a
-- late copy of it finds its nonce in void_nonces and is refused. sent is the time since it was first sent,
-- in microseconds.
CREATE OR REPLACE FUNCTION tapestore.settle(run_id bytea, lost_nonce bigint, result_name bytea, sent bigint, op smallint)
RETURNS tapestore.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	r     tapestore.runs;
	b     tapestore.batches;
	e     record;
	a     tapestore.answer;
	epoch bigint;
	looked integer := 0;
	since timestamptz := clock_timestamp() - sent * interval '1 microsecond';
	-- Not later than the commit of a write whose time is not known any more. The minute is for the way of this
	-- request, which sent does not contain.
	bound timestamptz := since - interval '1 minute';
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
				r.granted := bound;
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
				IF op = 1 AND r.purged THEN -- created is the time of the purge
					r.created := bound;
				END IF;
				a := tapestore.tell(1, CASE
					WHEN op = 2 THEN r.granted
					WHEN op = 1 THEN r.created
					WHEN op NOT IN (1, 2) AND i = 1 AND r.purged THEN r.created -- the last purge
					ELSE bound END, 0, r.last_seq, '{}', r, epoch);
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
		EXIT WHEN looked > 10000 AND e.time < since - interval '1 hour';
		IF e.nonce = lost_nonce THEN
			IF e.token > 0 AND e.token <> r.token THEN -- it may have been a grant, and the lease was lost since
				r.token := e.token;
				r.grant_state := 0;
				r.expires := clock_timestamp();
			END IF;
			RETURN tapestore.tell(1, e.time, e.seq, NULL, coalesce(e.versions, '{}'), r, epoch);
		END IF;
	END LOOP;
	UPDATE tapestore.runs SET void_nonces = (ARRAY[lost_nonce] || void_nonces)[1:128] WHERE no = r.no;
	-- Its own row may have been forgotten if two things hold. Of its kind, with a name or of a nonce, no row is
	-- older than it. And as many rows were added since it was sent as are always kept, of both kinds together.
	RETURN tapestore.tell(CASE WHEN r.batches > 256
		AND coalesce((SELECT min(at) FROM tapestore.batches WHERE run = r.no AND (get_byte(id, 0) = 110) = (result_name IS NULL)),
			CASE WHEN result_name IS NULL THEN 'infinity' ELSE '-infinity' END::timestamptz) > since
		AND coalesce((SELECT min(at) FROM tapestore.batches WHERE run = r.no AND n >= r.batches - 256), '-infinity') > since
		THEN 5 ELSE 4 END, clock_timestamp(), NULL, NULL, NULL, r, epoch);
END $$;
