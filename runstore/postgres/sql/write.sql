-- write performs every write without a dedicated statement, by the function tapestore.write; see
-- functions/write.sql for the meaning of its arguments. The casts fix the types of the parameters in every
-- mode of the protocol. For a request that may make a grant the statement also returns the former
-- grants, by which package rules explains a refusal.
--
-- Part: demand, in a transaction of several writes: if this write is refused, tapestore.require_applied
-- raises an error, which rolls back all.
--
-- $1 to $37 the arguments of tapestore.write, in its order
SELECT a.*, CASE WHEN $1::smallint IN (1, 2) THEN tapestore.former_grants(op => $1::smallint, run_id => $2::bytea) END
FROM tapestore.write(op => $1::smallint, run_id => $2::bytea, this_nonce => $3::bigint,
	result_name => $4::bytea,
	fence_token => $5::bigint, fence_grant => $6::bytea, fence_owner => $7::bytea,
	want_token => $8::bigint, want_seq => $9::bigint, want_statuses => $10::integer[],
	want_keys => $11::bytea[], want_versions => $12::bigint[],
	lease_owner => $13::bytea, lease_reactor => $14::bytea,
	lease_ttl => $15::bigint, lease_strict => $16::boolean, lease_stall => $17::bigint, lease_grant => $18::bytea, lease_preempt => $19::bytea,
	lowest => $20::bigint,
	kinds => $21::bytea[], payloads => $22::bytea[],
	record_keys => $23::bytea[], record_values => $24::bytea[], record_events => $25::integer[],
	place_records => $26::integer[], place_names => $27::bytea[],
	place_times => $28::timestamptz[], place_afters => $29::bigint[],
	new_status => $30::integer,
	set_runnable => $31::boolean, runnable_at => $32::timestamptz, runnable_after => $33::bigint,
	ends_grant => $34::boolean, purges => $35::boolean, is_unlisted => $36::boolean, one_instant => $37::boolean) a
WHERE tapestore.require_applied(a) -- if demand
