-- standby_lag returns whether a node is in recovery, and an upper bound of its staleness in
-- microseconds: NULL if there is none, 0 on a primary. The bound compares the node's clock with the
-- primary's, so it is too low by as much as the node's clock is slow, and may be negative.
--
-- PostgreSQL reads the time of a commit before it writes the commit to its log. So every commit that
-- was acknowledged before that time is earlier in the log, and was replayed earlier. The time stands
-- still while nothing is committed, which makes the bound too high, never too low.
--
-- pg_stat_wal_receiver cannot make the bound smaller. Its last_msg_send_time begins as the node's own
-- time when the receiver starts, even if the primary then refuses to send. A keepalive has the
-- position up to which the log was sent, not up to which commits were acknowledged. On a cascaded
-- standby both describe another standby.
SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN
	(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000000)::bigint
ELSE 0 END
