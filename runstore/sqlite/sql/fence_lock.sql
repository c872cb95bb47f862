-- fence_lock takes the database's write lock for a transaction of the user's. It changes one row if
-- the run exists.
--
-- ?1 id of the run
UPDATE runs SET token = token WHERE id = ? AND purged = 0
