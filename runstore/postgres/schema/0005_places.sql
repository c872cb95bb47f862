-- A run's place in the index of runnable runs: the later of runnable and of the expiry of its
-- current grant, as that was when the grant was made or when a scan last moved the place. A
-- renewal changes neither column. The server computes the place, so every statement that ends a
-- grant or changes runnable moves it too, and it is never behind the expiry in the same row: a
-- lease is not shortened by a renewal.
ALTER TABLE tapestore.runs ADD COLUMN indexed_expires timestamptz;

UPDATE tapestore.runs SET indexed_expires = expires WHERE grant_state = 1;

ALTER TABLE tapestore.runs ADD COLUMN place timestamptz GENERATED ALWAYS AS (
	CASE WHEN NOT purged AND runnable IS NOT NULL THEN CASE WHEN grant_state = 1 THEN greatest(runnable, indexed_expires) ELSE runnable END END
) STORED;

DROP INDEX tapestore.runs_runnable;
CREATE INDEX runs_runnable ON tapestore.runs (place, created, no) WHERE place IS NOT NULL;

-- tapestore.write sets indexed_expires where it sets the expiry of a grant, and not where it
-- renews one. The rest of the function stays as it is.
DO $change$
DECLARE
	was    text := pg_get_functiondef('tapestore.write'::regproc);
	become text;
BEGIN
	become := replace(was, 'r.is_strict := lease_strict; r.expires := clock + lease_ttl * interval ''1 microsecond'';',
		'r.is_strict := lease_strict; r.expires := clock + lease_ttl * interval ''1 microsecond''; r.indexed_expires := r.expires;');
	become := replace(become, 'expires = r.expires, status = r.status,',
		'expires = r.expires, indexed_expires = r.indexed_expires, status = r.status,');
	IF length(become) <> length(was) + length(' r.indexed_expires := r.expires;') + length(' indexed_expires = r.indexed_expires,') THEN
		RAISE EXCEPTION 'tapestore.write is not the function of version 4';
	END IF;
	EXECUTE become;
END $change$;
