-- incarnation_guard fails (division_by_zero) if the server is another incarnation than the one that
-- the epoch belongs to, or if the positions of the transaction have another base. It precedes the writes of
-- a transaction that a pooling proxy may run on any server. On a standby it succeeds, because the server
-- refuses the writes.
--
-- $1 the base of the positions (sql/position_base.sql), or NULL if the server adds it
SELECT 1 / (pg_is_in_recovery() OR cluster = (SELECT system_identifier::text FROM pg_control_system())
	AND timeline = CASE WHEN NOT pg_is_in_recovery()
		THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
	AND coalesce($1::bigint = position_base - (xid_base << 14), true))::int
FROM tapestore.store
