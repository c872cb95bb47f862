-- collect deletes at most so many events and records of a purged run, or of any if run_id is NULL, and
-- returns whether there may be more. It locks no run, so nothing waits for it, the feed included (see
-- feed.go): a step that is cut short is made again by the next caller. seq and key are where the
-- next step begins, because a scan from the first row would pass over all that were deleted, for as long
-- as any old snapshot is in use.
CREATE OR REPLACE FUNCTION tapestore.collect(run_id bytea, most integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
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
