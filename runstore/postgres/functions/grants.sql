-- former returns what is stored of the id of a former grant (rules.Former): the id itself is secret.
CREATE OR REPLACE FUNCTION tapestore.former(grant_id bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
	SELECT substr(sha256(grant_id), 1, 8)
$$;

-- former_grants returns the former grants by which the caller explains the answer to a request for the
-- lease: of an acquire, and of a create that was refused because the purged run had the grant before. It
-- returns NULL for a run that was created, or existed. It is VOLATILE, so that it sees what was committed
-- while the write waited for the row.
CREATE OR REPLACE FUNCTION tapestore.former_grants(op smallint, run_id bytea) RETURNS bytea[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN (SELECT coalesce(g.former, '{}') FROM tapestore.runs LEFT JOIN tapestore.grants AS g ON g.run = runs.no
		WHERE runs.id = run_id AND (op = 2 OR purged));
END $$;

-- with_term returns the terms with t prepended, and without the oldest if there are too many. At least
-- four are kept, however long their names are.
CREATE OR REPLACE FUNCTION tapestore.with_term(terms tapestore.term[], t tapestore.term) RETURNS tapestore.term[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	terms := (array_prepend(t, terms))[1:31];
	WHILE pg_column_size(terms) > 4096 AND cardinality(terms) > 4 LOOP
		terms := terms[1:cardinality(terms) - 1];
	END LOOP;
	RETURN terms;
END $$;

-- place_of returns the place of a run in the index of runnable runs: the later of runnable and of the expiry
-- of its current grant as that was made or last moved, and NULL for a run that never is.
CREATE OR REPLACE FUNCTION tapestore.place_of(r tapestore.runs) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE WHEN NOT r.purged AND r.runnable IS NOT NULL THEN
		CASE WHEN r.grant_state = 1 THEN greatest(r.runnable, r.indexed_expires) ELSE r.runnable END END
$$;
