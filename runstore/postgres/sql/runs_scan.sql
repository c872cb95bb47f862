-- runs_scan returns the ids of the runs that follow an id, in the order of the ids.
--
-- $1 id after which the page begins, {limit} number of runs
SELECT runs.id FROM tapestore.runs WHERE runs.id > $1::bytea AND NOT runs.purged ORDER BY runs.id LIMIT {limit}
