-- event_mark inserts a marker, a row of run 0. One at the floor of an epoch lets later positions be above
-- it. One behind imported events, whose times are those of another store, has a time of this one.
--
-- ?1 position, ?2 time in microseconds
INSERT INTO events (pos, run, seq, kind, data, time, token, owner) VALUES (?, 0, 0, '', x'', ?, 0, x'')
