-- schema_tables returns the names of the tables of the database.
SELECT t.table_name FROM information_schema.tables AS t WHERE t.table_schema = ''
