-- purge_step deletes rows of one purged run, and reports whether there may be more to delete.
--
-- $1 id of the run or NULL for any, $2 number of rows
SELECT tapestore.collect(run_id => $1::bytea, most => $2::integer)
