-- admin_session returns what tapestore doctor reports of a session and its server: the server's
-- process, the role, versions and settings. A setting that the server does not have is ''.
SELECT pg_backend_pid(), session_user::text, current_setting('server_version'), pg_is_in_recovery(),
	current_setting('transaction_isolation'), current_setting('synchronous_commit'),
	current_setting('synchronous_standby_names'), coalesce(current_setting('fsync', true), ''),
	coalesce(current_setting('full_page_writes', true), ''), coalesce(current_setting('autovacuum', true), ''),
	current_setting('default_transaction_read_only'),
	EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'plpgsql'),
	(SELECT count(*) FROM pg_catalog.pg_prepared_xacts WHERE database = current_database())
