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
