-- clock_last_write returns the times of the last event and of the last renewal in microseconds, 0 without
-- one, because appends and renewals do not update clock_seen. It reads every run, once in each boot.
SELECT coalesce((SELECT time FROM events ORDER BY pos DESC LIMIT 1), 0), coalesce((SELECT max(renewed) FROM runs), 0)
