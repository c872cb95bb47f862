-- standby_lag returns whether a node is in recovery, and an upper bound of its staleness in
-- microseconds: NULL if there is none, 0 on a primary. The bound compares the node's clock with the
-- primary's, so it is too low by as much as the node's clock is slow.
--
-- The time of the last replayed commit is not enough, because it stands still while nothing is
-- committed. The send time of the primary's last message counts too, if everything that the primary
-- had written by then was replayed. That the node has replayed everything it received proves
-- nothing, because that is also true of a node that receives nothing any more. Roles without
-- pg_read_all_stats cannot read the time of the last message.
SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN (extract(epoch FROM clock_timestamp() - greatest(
	pg_last_xact_replay_timestamp(),
	(SELECT last_msg_send_time FROM pg_stat_wal_receiver WHERE latest_end_lsn <= pg_last_wal_replay_lsn())
)) * 1000000)::bigint ELSE 0 END
