-- grants_put stores the former grants of a run.
--
-- ?1 number of the run, ?2 hashes of the grant ids, eight bytes each
INSERT INTO grants (run, former) VALUES (?, ?)
ON CONFLICT (run) DO UPDATE SET former = excluded.former
