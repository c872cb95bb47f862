-- session_check_hidden is session_check for a role that may not read the incarnation of the server.
SELECT pg_is_in_recovery(),
	cluster, timeline, current_setting('synchronous_commit') = 'off', current_setting('transaction_isolation'),
	epoch, position_base - (xid_base << 14), (SELECT max(version) FROM tapestore.migrations)
FROM tapestore.store
