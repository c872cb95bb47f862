-- lost_positions is how many positions a lost history of the store can have given out in a
-- time: 50,000 transactions a second, of 2^14 positions each. Five minutes are added, for
-- clocks that differ and for a transaction that waited between its number and the time of
-- its events. 2^49 positions are the most: eight days at that rate.
CREATE OR REPLACE FUNCTION tapestore.lost_positions(lost interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT least((greatest(extract(epoch FROM lost), 0) + 300) * 50000, 1::bigint << 35)::bigint << 14
$$;

-- raise_epoch begins a new epoch, which ends every grant and moves the feed's positions on by more than a
-- lost history of the store can have given out. The lock waits for the writes
-- under way and keeps out those to come, so that none has read the old epoch; reads
-- go on. by_itself: only if the store does not belong to that incarnation already,
-- so that of several handles that see a new one at once, one raises the epoch.
--
-- A lost history and this one parted after everything that is stored here. So it had at most
-- the positions that follow a known one in the time since that one was given out. The known
-- one is that of the last event or, if it is later, the base of the current epoch, at the time
-- of its beginning.
-- In the same cluster there is a second bound: no transaction of the common history has a
-- higher number than this one, and that history goes on at least to the latest time that is
-- stored. So a failover of a store without new events costs little. The lower bound is taken.
CREATE OR REPLACE FUNCTION tapestore.raise_epoch(why bytea, new_cluster text, new_timeline bigint, by_itself boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	s tapestore.store;
	steps bigint;
	clock timestamptz;
	known bigint;
	since timestamptz;
	next  bigint;
BEGIN
	LOCK TABLE tapestore.runs IN EXCLUSIVE MODE;
	SELECT * INTO s FROM tapestore.store FOR UPDATE;
	IF by_itself AND s.cluster = new_cluster AND s.timeline = new_timeline THEN
		RETURN 0; -- another handle was first
	END IF;
	-- A timeline between may have had an epoch that was lost with it.
	steps := CASE WHEN s.cluster = new_cluster THEN greatest(new_timeline - s.timeline, 1) ELSE 1 END;
	IF s.epoch + steps > 8191 THEN
		RETURN s.epoch + steps; -- refused by the caller, which knows the limit
	END IF;
	clock := clock_timestamp();
	since := greatest((SELECT time FROM tapestore.events ORDER BY position DESC LIMIT 1),
		(SELECT at FROM tapestore.epochs ORDER BY epoch DESC LIMIT 1), (SELECT min(at) FROM tapestore.migrations));
	known := greatest(s.position_base, s.last_purged, (SELECT max(position) FROM tapestore.events));
	next := known + steps * tapestore.lost_positions(clock - since);
	IF s.cluster = new_cluster THEN
		since := greatest(since, pg_last_xact_replay_timestamp(), (SELECT max(greatest(created, renewed, granted, progressed)) FROM tapestore.runs));
		next := least(next, greatest(known, s.position_base + ((pg_current_xact_id()::text::bigint - s.xid_base) << 14))
			+ steps * tapestore.lost_positions(clock - since));
	END IF;
	-- From 2^53 on there is no position for an event any more, but reads and leases go on.
	next := greatest(known, least(greatest((s.epoch + steps) << 40, next), 1::bigint << 53));
	INSERT INTO tapestore.epochs (epoch, at, reason) VALUES (s.epoch + steps, clock, why);
	UPDATE tapestore.runs SET grant_state = 3, ended = clock, place = runnable WHERE grant_state = 1;
	UPDATE tapestore.store SET epoch = s.epoch + steps,
		cluster = CASE WHEN new_cluster = '' THEN s.cluster ELSE new_cluster END, -- '': this role may not see it
		timeline = CASE WHEN new_cluster = '' THEN s.timeline ELSE new_timeline END,
		xid_base = pg_current_xact_id()::text::bigint, position_base = next;
	RETURN s.epoch + steps;
END $$;
