-- schema_find_versions reports whether the table of versions exists. It reads the tables of the
-- catalog: to_regclass and similar functions may answer from a cache, which waiting for schema_lock
-- does not refresh.
SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'tapestore' AND tablename = 'migrations')
