-- The grants that a run had before the one in runs: eight bytes of the SHA-256 of each
-- id, the newest first (rules.FormerGrants). They are apart from runs, whose row every
-- append writes. A run that was leased once has no row; a purged run keeps its own.
CREATE TABLE grants (
	run    INTEGER PRIMARY KEY,
	former BLOB    NOT NULL
) STRICT;
