-- The place of a run is a column like any other, and each statement that makes or ends a grant or
-- changes runnable sets it. A column that the server computes costs every update of the table the time to read
-- its expression anew: a tenth of an append.
ALTER TABLE tapestore.runs ALTER COLUMN place DROP EXPRESSION;

-- A former program releases leases by a statement of its own, which leaves the place: the run would be
-- found late. That statement names this column, so the server refuses it.
ALTER TABLE tapestore.runs RENAME COLUMN given_up TO void_nonces;

-- place_of returns the place of a run: see 0005_places.sql.
CREATE FUNCTION tapestore.place_of(r tapestore.runs) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE WHEN NOT r.purged AND r.runnable IS NOT NULL THEN
		CASE WHEN r.grant_state = 1 THEN greatest(r.runnable, r.indexed_expires) ELSE r.runnable END END
$$;

DO $migration$
DECLARE
	body text;
	edit text[];
BEGIN
	FOREACH edit SLICE 1 IN ARRAY ARRAY[
		['tapestore.write', 'r.given_up', 'r.void_nonces'],
		['tapestore.write', ' indexed_expires = r.indexed_expires,', ' indexed_expires = r.indexed_expires, place = tapestore.place_of(r),'],
		['tapestore.settle', 'given_up', 'void_nonces'],
		['tapestore.raise_epoch', 'SET grant_state = 3 WHERE grant_state = 1', 'SET grant_state = 3, place = runnable WHERE grant_state = 1']
	] LOOP
		body := pg_get_functiondef(edit[1]::regproc);
		IF strpos(body, edit[2]) = 0 THEN
			RAISE '% has no %', edit[1], edit[2];
		END IF;
		EXECUTE replace(body, edit[2], edit[3]);
	END LOOP;
END $migration$;

-- commit_fenced is tapestore.write for a commit whose own statement was not applied. It has the parameters
-- of such commits alone, because the statement prepares the call each time, though few make it.
CREATE FUNCTION tapestore.commit_fenced(run_id bytea, this_nonce bigint, result_name bytea, fence_token bigint, fence_grant bytea, fence_owner bytea,
	want_keys bytea[], want_versions bigint[], kinds bytea[], payloads bytea[], record_keys bytea[], record_values bytea[], record_events integer[],
	place_records integer[], place_names bytea[], place_times timestamptz[], place_afters bigint[])
RETURNS jsonb LANGUAGE plpgsql VOLATILE SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
BEGIN
	RETURN to_jsonb(tapestore.write(0::smallint, run_id, this_nonce, result_name, fence_token, fence_grant, fence_owner,
		NULL, NULL, NULL, want_keys, want_versions, NULL, NULL, NULL, false, 0, NULL, NULL,
		0, kinds, payloads, record_keys, record_values, record_events, place_records, place_names, place_times, place_afters,
		NULL, false, NULL, NULL, false, false, false, false));
END $$;
