-- incarnation_read returns whether the server is a standby, its cluster and its timeline. It takes
-- the timeline from the write-ahead log too, because the control file shows a promotion only after
-- the next checkpoint.
SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()),
	greatest((SELECT timeline_id FROM pg_control_checkpoint()), CASE WHEN NOT pg_is_in_recovery()
		THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)::bigint
