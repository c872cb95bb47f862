-- The place of a run is a column like any other, and each statement that makes or ends a grant or
-- changes runnable sets it. A column that the server computes costs every update of the table the time to read
-- its expression anew: a tenth of an append.
ALTER TABLE tapestore.runs ALTER COLUMN place DROP EXPRESSION;

-- A former program releases leases by a statement of its own, which leaves the place: the run would be
-- found late. That statement names this column, so the server refuses it.
ALTER TABLE tapestore.runs RENAME COLUMN given_up TO void_nonces;
