-- The terms before that of the last grant (rules.TermList). NULL: none.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS Terms BYTES(8192);

-- When the last grant ended, NULL while it is current. A time before Granted is that of an earlier
-- grant: a program of version 4, which does not know this column, made and ended the last one.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS GrantEnded TIMESTAMP;
