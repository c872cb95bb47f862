-- schema_empty_feed clears the columns of Feed that repeated the events before version 4 of the
-- schema. It is partitioned DML: it visits every row outside a single transaction, perhaps more
-- than once.
UPDATE Feed SET Time = NULL, Token = NULL, Kind = NULL, Owner = NULL, Data = NULL WHERE Data IS NOT NULL
