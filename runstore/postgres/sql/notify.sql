-- notify notifies the other processes.
--
-- $1 channel, $2 payload
SELECT pg_notify($1::text, $2::text)
