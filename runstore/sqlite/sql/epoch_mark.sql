-- epoch_mark inserts a marker, a row of run 0, at the floor of an epoch, so that later positions
-- are above it.
--
-- ?1 position, ?2 time in microseconds
INSERT INTO events (pos, run, seq, kind, data, time, token, owner) VALUES (?, 0, 0, '', x'', ?, 0, x'')
