-- schema_lock lets one replica migrate at a time. The advisory lock ends with its transaction, so
-- it works through a proxy that pools transactions too.
SELECT pg_advisory_xact_lock(hashtextextended('tapestore.migrations', 0))
