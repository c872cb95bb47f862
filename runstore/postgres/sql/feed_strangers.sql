-- feed_strangers stores the numbers of the strangers in a setting that lasts until the end of its
-- transaction: open transactions that never append to this store; see feed.go. The setting stays
-- empty if no committed event is at or above the oldest open transaction, because then nothing is
-- hidden.
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks)
SELECT set_config('tape.strangers', ARRAY(
	SELECT x FROM pg_snapshot_xip(pg_current_snapshot()) AS x JOIN locks AS own ON own.transactionid = x::xid AND own.mode = 'ExclusiveLock'
	WHERE NOT EXISTS (SELECT FROM locks AS held WHERE held.virtualtransaction = own.virtualtransaction
		AND held.relation = 'tapestore.runs'::regclass
		AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())))::text, true)
FROM (
	SELECT position_base + (greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint - xid_base, 0) << 14) AS safe
	FROM tapestore.store
) b
WHERE (SELECT max(position) FROM tapestore.events) >= b.safe
