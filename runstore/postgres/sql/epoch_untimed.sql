-- epoch_untimed lets the statements that follow in the transaction take any time. A raise of the epoch
-- changes the row of every leased run: with many, statement_timeout would end every attempt. lock_timeout
-- still bounds the wait for a lock.
SELECT set_config('statement_timeout', '0', true)
