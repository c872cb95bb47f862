-- epoch_end_grants ends the grants of earlier epochs. It is partitioned DML: Spanner applies it to
-- every run outside a single transaction, and may apply it to a row more than once. Grants of the
-- new epoch have tokens above the floor. No further grant of an earlier epoch can be made, because
-- a grant reads the epoch in its own transaction.
--
-- @floor highest token of earlier epochs
UPDATE Runs SET GrantState = 3, GrantEnded = TIMESTAMP_TRUNC(CURRENT_TIMESTAMP(), MICROSECOND)
WHERE GrantState = 1 AND Token <= @floor
