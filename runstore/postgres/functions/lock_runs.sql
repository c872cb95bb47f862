-- lock_runs begins a commit over several runs. It takes the locks of all in one order, so that two such
-- commits cannot wait for each other, and then reads the clock for all. If any of the runs remembers its
-- batch as part of this whole, the commit was applied before, and the writes that follow change nothing.
-- What they have to know is stored in settings that end with the transaction.
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
