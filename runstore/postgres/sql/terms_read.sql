-- terms_read returns the terms of a run, the oldest first. The last row is of the last grant: its how
-- is NULL if there was none.
--
-- $1 id of the run
SELECT t.token, t.granted, t.expires, t.ended, t.how, t.owner, t.reactor, t.reason
FROM tapestore.runs LEFT JOIN tapestore.grants ON grants.run = runs.no
	CROSS JOIN LATERAL (
		SELECT * FROM unnest(grants.terms) WITH ORDINALITY AS f (token, granted, expires, ended, how, owner, reactor, reason, i)
		UNION ALL
		SELECT runs.token, runs.granted, runs.expires, CASE WHEN runs.grant_state <> 1 AND runs.ended >= runs.granted THEN runs.ended END,
			CASE runs.grant_state WHEN 1 THEN 0 WHEN 2 THEN 1 WHEN 3 THEN 5 END::smallint, runs.owner, runs.reactor, ''::bytea, 0
	) AS t
WHERE runs.id = $1::bytea AND NOT runs.purged
ORDER BY t.i DESC
