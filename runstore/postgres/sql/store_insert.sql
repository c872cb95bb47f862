-- store_insert inserts the only row of store.
--
-- $1 cluster, $2 timeline
INSERT INTO tapestore.store (epoch, cluster, timeline, position_base, xid_base)
VALUES (0, $1::text, $2::bigint, 0, pg_current_xact_id()::text::bigint - 1)
ON CONFLICT DO NOTHING
