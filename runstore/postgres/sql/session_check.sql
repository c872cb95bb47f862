-- session_check returns what a new connection is checked by: incarnation_read, the cluster and the
-- timeline of the store, settings of the session, the epoch, position_base, and the version of the
-- schema. It is one statement, because after a failure every connection is new.
SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()),
	greatest((SELECT timeline_id FROM pg_control_checkpoint()), CASE WHEN NOT pg_is_in_recovery()
		THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)::bigint,
	cluster, timeline, current_setting('synchronous_commit') = 'off', current_setting('transaction_isolation'),
	epoch, position_base - (xid_base << 14), (SELECT max(version) FROM tapestore.migrations)
FROM tapestore.store
