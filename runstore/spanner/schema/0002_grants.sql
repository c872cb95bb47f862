-- The grants that a run had before the one in GrantId: eight bytes of the SHA-256 of each
-- id, the newest first (rules.FormerGrants). NULL: none.
ALTER TABLE Runs ADD COLUMN IF NOT EXISTS FormerGrants BYTES(1024);
