-- schema_insert_version records a migration.
--
-- $1 version
INSERT INTO tapestore.migrations (version) VALUES ($1::integer)
