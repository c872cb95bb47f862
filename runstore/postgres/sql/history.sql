-- history makes what tapestore.write has just written in the same transaction a part of an imported
-- history: times, tokens and owners of the events, versions and stamps of the records, the creation
-- time and the floor of the versions of the run, and the end of the importer's grant, which is a
-- revocation. The other columns of the index entries do not depend
-- on the time of the commit.
--
-- A purge raises the floor by last_seq and batches (schema/0006_purge.sql), which counts the writes of
-- this store only. The floor is raised here so that the sum is not below an imported version.
--
-- $16 whether the grant ends; $1 id of the run, $2 floor, $3 creation time or NULL; of each event: $4 seq, $5 time, $6 token, $7
-- owner; of each record: $8 key, $9 version, $10 seq, $11 time and $12 token of its creation, $13 seq,
-- $14 time and $15 token of its last change
WITH r AS (
	UPDATE tapestore.runs SET version_floor = greatest(version_floor, $2::bigint,
			(SELECT max(version) FROM unnest($9::bigint[]) AS version) - last_seq - batches),
		grant_state = CASE WHEN $16::boolean THEN 3 ELSE grant_state END,
		created = coalesce($3::timestamptz, created)
	WHERE id = $1::bytea
	RETURNING no
), e AS (
	UPDATE tapestore.events SET time = was.time, token = was.token, owner = was.owner
	FROM r, unnest($4::bigint[], $5::timestamptz[], $6::bigint[], $7::bytea[]) AS was (seq, time, token, owner)
	WHERE events.run = r.no AND events.seq = was.seq
), k AS (
	UPDATE tapestore.records SET version = was.version, created_seq = was.created_seq, created = was.created, created_token = was.created_token,
		updated_seq = was.updated_seq, updated = was.updated, updated_token = was.updated_token
	FROM r, unnest($8::bytea[], $9::bigint[], $10::bigint[], $11::timestamptz[], $12::bigint[], $13::bigint[], $14::timestamptz[], $15::bigint[])
		AS was (key, version, created_seq, created, created_token, updated_seq, updated, updated_token)
	WHERE records.run = r.no AND records.key = was.key
)
UPDATE tapestore.places SET written = was.updated
FROM r, unnest($8::bytea[], $14::timestamptz[]) AS was (key, updated)
WHERE places.run = r.no AND places.key = was.key
