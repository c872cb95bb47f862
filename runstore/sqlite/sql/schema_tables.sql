-- schema_tables returns the number of tables and indexes in the file.
SELECT count(*) FROM sqlite_master
