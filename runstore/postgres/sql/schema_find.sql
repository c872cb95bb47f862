-- schema_find reports whether the schema exists. It reads the tables of the catalog: to_regclass
-- and similar functions may answer from a cache, which waiting for schema_lock does not refresh.
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'tapestore')
