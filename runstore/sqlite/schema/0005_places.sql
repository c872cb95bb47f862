-- A run's place in the index of runnable runs is the later of runnable and the expiry of its
-- grant as granted, so that scans do not pass over live leases. Renewals do not move it. NULL
-- for a run that is never runnable, and for a purged one. Of a grant that was made before this
-- column was added the expiry is that of the last renewal, which is as good.
ALTER TABLE runs ADD COLUMN place INTEGER;

UPDATE runs SET place = CASE grant_state WHEN 1 THEN max(runnable, expires) ELSE runnable END
	WHERE purged = 0 AND runnable IS NOT NULL;

DROP INDEX runs_runnable;

CREATE INDEX runs_runnable ON runs (place, created, no) WHERE place IS NOT NULL;
