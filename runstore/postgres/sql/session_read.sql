-- session_read returns what the store needs to know of a session that is not its own: the
-- synchronous standbys, the isolation level, and whether commits are asynchronous.
SELECT current_setting('synchronous_standby_names'), current_setting('transaction_isolation'), current_setting('synchronous_commit') = 'off'
