-- no_timeout lets the statements that follow in the transaction take any time. A raise of the epoch
-- changes the row of every leased run, and a migration may rewrite tables: with many rows,
-- statement_timeout would end every attempt. What waits for a lock holds up others, so lock_timeout
-- bounds that, also behind a proxy through which a session has no settings of the store.
-- A role may have transaction_timeout as well, from PostgreSQL 17 on; older servers have no such setting.
--
-- $1 lock_timeout in milliseconds, 0 for none
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', $1::bigint::text, true),
	(SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout')
