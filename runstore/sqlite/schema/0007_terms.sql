-- The terms before that of the last grant (rules.TermList), beside the ids of those grants. NULL: none.
-- Of the last grant, once it has ended, the row in runs keeps owner, reactor and the time of the
-- grant, and renewed is the time of its end. An empty owner means that these are not known, because
-- a program of version 6 has ended the grant.
ALTER TABLE grants ADD COLUMN terms BLOB;
