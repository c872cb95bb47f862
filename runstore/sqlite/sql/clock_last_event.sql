-- clock_last_event returns the time of the last event in microseconds, because appends do not
-- update clock_seen.
SELECT time FROM events ORDER BY pos DESC LIMIT 1
