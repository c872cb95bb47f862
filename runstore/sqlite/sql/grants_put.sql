-- grants_put stores the former grants of a run.
--
-- ?1 number of the run, ?2 hashes of the grant ids, eight bytes each, ?3 their terms
INSERT INTO grants (run, former, terms) VALUES (?, ?, ?)
ON CONFLICT (run) DO UPDATE SET former = excluded.former, terms = excluded.terms
