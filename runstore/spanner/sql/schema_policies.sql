-- schema_policies returns 1 if the table Writes has a row deletion policy, otherwise 0.
SELECT COUNT(*)
FROM information_schema.tables AS t
WHERE t.table_name = 'Writes' AND t.row_deletion_policy_expression IS NOT NULL
