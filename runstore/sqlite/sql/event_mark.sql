-- event_mark inserts a marker, a row of run 0. A marker at the floor of an epoch keeps later positions above
-- it. A marker behind imported events, whose times are those of another store, has a time of this store.
--
-- ?1 position, ?2 time in microseconds
INSERT INTO events (pos, run, seq, kind, data, time, token, owner) VALUES (?, 0, 0, '', x'', ?, 0, x'')
