-- incarnation_guard fails (division_by_zero) if the server is another incarnation than the one that
-- the epoch belongs to. It precedes the writes of a transaction that a pooling proxy may run on any
-- server. On a standby it succeeds, because the server refuses the writes.
SELECT 1 / (pg_is_in_recovery() OR cluster = (SELECT system_identifier::text FROM pg_control_system())
	AND timeline = CASE WHEN NOT pg_is_in_recovery()
		THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)::int
FROM tapestore.store
