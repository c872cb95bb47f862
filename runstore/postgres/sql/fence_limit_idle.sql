-- fence_limit_idle makes the server end the session when the transaction has been idle for $1 ms,
-- unless the session has a lower limit; then it returns no row. A paused process must not keep its
-- successor waiting for the lock.
--
-- $1 limit in ms, as text
SELECT set_config('idle_in_transaction_session_timeout', $1::text, true)
FROM pg_catalog.pg_settings WHERE name = 'idle_in_transaction_session_timeout' AND (setting::bigint = 0 OR setting::bigint > $1::text::bigint)
