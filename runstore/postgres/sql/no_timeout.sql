-- no_timeout lets the statements that follow in the transaction take any time. A raise of the epoch
-- changes the row of every leased run, and a migration may rewrite tables: with many rows,
-- statement_timeout would end every attempt. lock_timeout still bounds the wait for a lock.
SELECT set_config('statement_timeout', '0', true)
