-- A store remembers a run's newest batch ids, so they are numbered in the order in which
-- they were applied. Those of before are numbered by what their results tell, and all but
-- the newest 128 of a run are deleted.
ALTER TABLE runs ADD COLUMN batches INTEGER NOT NULL DEFAULT 0; -- the number of the last

ALTER TABLE batches RENAME TO batches_of_before;

-- The results of batches that carried an id.
CREATE TABLE batches (
	run    INTEGER NOT NULL,
	id     TEXT    NOT NULL,
	no     INTEGER NOT NULL, -- grows by one with each of the run's batches that carry an id
	result BLOB    NOT NULL,
	PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

-- Times are in UTC, without trailing zeros: without the Z, they sort as text.
INSERT INTO batches
	SELECT run, id, no, result FROM (
		SELECT run, id, result, row_number() OVER oldest AS no, count(*) OVER (PARTITION BY run) AS n
		FROM (SELECT run, id, result, CAST(result AS TEXT) AS text FROM batches_of_before)
		WINDOW oldest AS (PARTITION BY run ORDER BY text ->> 'LastSeq', rtrim(text ->> 'Time', 'Z'), id)
	) WHERE no > n - 128;

DROP TABLE batches_of_before;

UPDATE runs SET batches = (SELECT coalesce(max(no), 0) FROM batches WHERE batches.run = runs.no);
