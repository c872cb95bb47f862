-- A purge raises version_floor by last_seq and batches, because a write adds one to the version of a
-- record and to one of the two. Before version 4 of the schema a creation or an acquire without events
-- added to neither. The lock waits for writes that have locked their run, and keeps out others: a write
-- that went on would be counted by half, and would deadlock with ALTER TABLE below.
LOCK TABLE tapestore.runs IN EXCLUSIVE MODE;

UPDATE tapestore.runs SET version_floor = highest.version
FROM (SELECT run, max(version) AS version FROM tapestore.records GROUP BY run) AS highest
WHERE highest.run = runs.no AND highest.version > version_floor + last_seq + batches;

-- A purge takes a moment, however much the run has: it gives the run's row a new number, and what is
-- stored under the former one is garbage. No reader finds that, because all come by the number of a
-- run. It is deleted in bounded steps, by tapestore.collect.
CREATE TABLE tapestore.garbage (
	id       bytea  NOT NULL,            -- of the run that was purged
	run      bigint NOT NULL,            -- the number that it had
	last_seq bigint NOT NULL,            -- of its last event
	seq      bigint NOT NULL DEFAULT 0,  -- events up to this one are deleted
	key      bytea  NOT NULL DEFAULT '', -- records up to this one are deleted
	PRIMARY KEY (id, run)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- collect deletes at most so many events and records of a purged run, or of any if run_id is NULL, and
-- returns whether there may be more. It locks no run, so nothing waits for it, the feed included (see
-- feed.go): a step that is cut short is made again by whoever comes next. seq and key are where the
-- next step begins, because a scan from the first row would pass over all that were deleted, for as long
-- as any old snapshot is in use.
CREATE FUNCTION tapestore.collect(run_id bytea, most integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	g    tapestore.garbage;
	keys bytea[];
	n    bigint;
BEGIN
	SELECT * INTO g FROM tapestore.garbage WHERE id >= coalesce(run_id, '') AND id <= coalesce(run_id, id)
	ORDER BY id, run LIMIT 1 FOR UPDATE SKIP LOCKED;
	IF g.run IS NULL THEN -- none, or all are in other hands
		RETURN false;
	END IF;
	n := least(most, g.last_seq - g.seq);
	IF n > 0 THEN
		DELETE FROM tapestore.events WHERE run = g.run AND seq > g.seq AND seq <= g.seq + n;
	END IF;
	IF n < most THEN
		SELECT array_agg(key ORDER BY key) INTO keys
		FROM (SELECT key FROM tapestore.records WHERE run = g.run AND key > g.key ORDER BY key LIMIT most - n) AS next;
		DELETE FROM tapestore.places WHERE run = g.run AND key = ANY (keys);
		DELETE FROM tapestore.records WHERE run = g.run AND key = ANY (keys);
		IF coalesce(cardinality(keys), 0) < most - n THEN
			DELETE FROM tapestore.batches WHERE run = g.run; -- a few hundred
			DELETE FROM tapestore.garbage WHERE id = g.id AND run = g.run;
			RETURN EXISTS (SELECT FROM tapestore.garbage WHERE id >= coalesce(run_id, '') AND id <= coalesce(run_id, id));
		END IF;
	END IF;
	UPDATE tapestore.garbage SET seq = g.seq + n, key = coalesce(keys[cardinality(keys)], g.key) WHERE id = g.id AND run = g.run;
	RETURN true;
END $$;

-- That a position is not beyond runstore.MaxPosition is looked at once for each write, where it is
-- made: a constraint cost each append a tenth of its time.
ALTER TABLE tapestore.events DROP CONSTRAINT events_position_limit;

-- tapestore.write stays as it was but for the lines below.
DO $migration$
DECLARE
	body text := pg_get_functiondef('tapestore.write'::regproc);
	edit text[];
BEGIN
	FOREACH edit SLICE 1 IN ARRAY ARRAY[
		[$$	highest   bigint;
$$, $$	was_no    bigint;
$$], [$$		r.last_position := r.last_position + appended;
$$, $$		r.last_position := r.last_position + appended;
		IF r.last_position >= 9007199254740992 THEN
			RAISE 'no positions are left' USING ERRCODE = 'check_violation', CONSTRAINT = 'events_position_limit';
		END IF;
$$], [$$		SELECT greatest(r.version_floor, max(version)) INTO r.version_floor FROM tapestore.records WHERE run = r.no;
		SELECT max(position) INTO highest FROM tapestore.events WHERE run = r.no;
		DELETE FROM tapestore.events WHERE run = r.no;
		DELETE FROM tapestore.places WHERE run = r.no;
		DELETE FROM tapestore.records WHERE run = r.no;
		DELETE FROM tapestore.batches WHERE run = r.no;
		-- Last, for every purge waits for this row.
		UPDATE tapestore.store SET last_purged = highest WHERE highest > last_purged;
$$, $$		-- A write adds one to the version of a record, and to last_seq or batches.
		r.version_floor := r.version_floor + r.last_seq + r.batches;
		INSERT INTO tapestore.garbage (id, run, last_seq) VALUES (r.id, r.no, r.last_seq);
		was_no := r.no;
		UPDATE tapestore.runs SET no = DEFAULT WHERE no = was_no RETURNING no INTO r.no;
		UPDATE tapestore.grants SET run = r.no WHERE run = was_no;
		-- Last, for every purge waits for this row.
		UPDATE tapestore.store SET last_purged = r.last_position WHERE r.last_position > last_purged;
$$]] LOOP
		IF strpos(body, edit[1]) = 0 THEN
			RAISE 'tapestore.write has no line %', edit[1];
		END IF;
		body := replace(body, edit[1], edit[2]);
	END LOOP;
	EXECUTE body;
END $migration$;
