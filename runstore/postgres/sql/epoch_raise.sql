-- epoch_raise raises the epoch and returns it.
--
-- $1 reason, $2 cluster, $3 timeline, $4 whether the epoch is raised only if the store was in
-- another cluster or on another timeline
SELECT tapestore.raise_epoch(why => $1::bytea, new_cluster => $2::text, new_timeline => $3::bigint, by_itself => $4::boolean)
