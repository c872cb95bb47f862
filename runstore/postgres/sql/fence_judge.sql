-- fence_judge returns the time of the store clock, the epoch, and whether a savepoint holds the lock
-- of fence_lock: then a rollback to the savepoint would release it. The row's xmax is then a number of
-- this session other than that of its transaction. If other transactions share the lock (foreign
-- keys to the run), xmax is no number of this session, and the result is false.
--
-- $1 id of the run
SELECT clock_timestamp(), (SELECT epoch FROM tapestore.store), CASE WHEN runs.xmax <> pg_current_xact_id()::xid THEN EXISTS (
		SELECT FROM pg_catalog.pg_locks WHERE pid = pg_backend_pid() AND locktype = 'transactionid' AND transactionid = runs.xmax AND mode = 'ExclusiveLock')
	ELSE false END
FROM tapestore.runs WHERE runs.id = $1
