-- write_settle resolves an ambiguous write. It returns the stored result, or voids the nonce, so
-- that a late copy of the write is never applied. The last column is the multi-commit id that is stored
-- with the result.
--
-- $1 id of the run, $2 nonce, $3 name of the result, $4 microseconds since the write was sent, $5
-- operation
SELECT a.*, NULL::bytea[],
	(SELECT batches.whole FROM tapestore.runs JOIN tapestore.batches ON batches.run = runs.no WHERE runs.id = $1::bytea AND batches.id = $3::bytea)
FROM tapestore.settle(run_id => $1::bytea, lost_nonce => $2::bigint, result_name => $3::bytea, sent => $4::bigint, op => $5::smallint) AS a
