-- store_insert inserts the only row of store into a new database.
--
-- ?1 incarnation
INSERT INTO store VALUES (1, ?, 0, 0, '', 0, 0, 0)
