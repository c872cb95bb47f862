-- schema_version returns the version of the schema.
SELECT coalesce(max(version), 0) FROM tapestore.migrations
