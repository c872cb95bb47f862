-- multi_lock locks the runs of a commit in the order of their ids. For the rest of the transaction
-- it sets the commit time, the multi-commit id, and whether the commit was already applied;
-- tapestore.write reads these settings.
--
-- $1 ids of the runs, $2 names of their results, $3 multi-commit id
SELECT tapestore.lock_runs(run_ids => $1::bytea[], batch_ids => $2::bytea[], this_whole => $3::bytea)
