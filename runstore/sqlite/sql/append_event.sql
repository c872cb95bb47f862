-- append_event inserts an event.
--
-- ?1 position, ?2 number of the run, ?3 seq, ?4 kind, ?5 data, ?6 time in microseconds, ?7 token,
-- ?8 owner
INSERT INTO events (pos, run, seq, kind, data, time, token, owner)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
