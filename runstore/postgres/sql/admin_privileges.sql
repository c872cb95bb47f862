-- admin_privileges returns the privileges that serving needs and that this role lacks, as they are
-- written in GRANT.
SELECT 'USAGE ON SCHEMA ' || 'tapestore' WHERE NOT has_schema_privilege('tapestore', 'USAGE')
UNION ALL
SELECT p.privilege || ' ON tapestore.' || c.relname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace,
	unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
WHERE n.nspname = 'tapestore' AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p.privilege)
UNION ALL
SELECT 'EXECUTE ON FUNCTION tapestore.' || f.proname
FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
WHERE n.nspname = 'tapestore' AND NOT has_function_privilege(f.oid, 'EXECUTE')
ORDER BY 1
