package postgres

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tapestore/tapestore/runstore"
)

// A commit that appends events under a fence is one statement, which may also remember an id,
// check versions and put records with their places. It has three forms:
//
//	alone     one batch; where it is not applied, the statement calls tapestore.write
//	merged    several batches of events for one run, under one fence
//	together  batches for several runs; leaves out each run whose row is locked
//
// A statement has one snapshot, and may wait for the row of its run after it took that. So what
// it reads of other tables may be old by then. Its invariants:
//
//  1. The fence, the end of a strict lease and the nonces that were given up are conditions on
//     the row of the run. PostgreSQL evaluates them on the row that it locks:
//     https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
//  2. last_seq and batches of that row are those of the snapshot. Every write that changes
//     records or results of a run changes one of the two. So what the snapshot has of these
//     tables is current.
//  3. The run has no result of the id, and every guarded version is as wanted, in the snapshot:
//     by 2 also under the lock.
//  4. If a condition does not hold, the statement changes nothing. tapestore.write, which is
//     VOLATILE and so has a newer snapshot, then returns the first result of the id, explains the
//     refusal, or applies a batch that had lost to another writer, in the same round trip. The
//     batches of the other forms are sent again, each in a statement of its own.
//
// A statement has only the parts that its batches need: each part costs 50 to 100 µs of the
// server's time, used or not. Rejected: tapestore.write for every commit. PL/pgSQL runs about ten
// statements for what is one here, in twice the server's time, and for one run only
// (BenchmarkAppend).
//
// $1 to $7 are scalars, and arrays with an element for each run where there are several: run,
// token, grant, owner, position of transaction 0, how many events, how many ids. The others are
// arrays that begin with the number of the run, from 1. $8 to $12, events: run, number within the
// run from 1, nonce, kind, data. $13 to $18, ids: run, number within the run from 0, its first and
// its last event, nonce, name of the result. $19 to $21, guards: run, key, version. $22 to $26,
// records: run, key, value, event from 0, how many places. $27 to $30, places: record from 1,
// index, time, microseconds after the commit.
const (
	advance = `r AS (
	UPDATE tapestore.runs SET last_seq = runs.last_seq + {events}, batches = runs.batches + {results}, progressed = clock_timestamp(),
		last_position = greatest(last_position + 1, {base} + (pg_current_xact_id()::text::bigint << 14)) + {events} - 1`

	returning = `
	RETURNING {i} AS i, no, runs.token, runs.owner, {events} AS events, {results} AS results, runs.last_seq, last_position, progressed AS now, runs.batches,
		version_floor, former_end
)`

	// updateOne waits for the row; see timely.
	updateOne = `WITH ` + advance + `
	WHERE {holds}{allowed}` + timely + returning

	// updateMany finds each run by a sub-select, because a join might read all runs.
	updateMany = `WITH seen AS MATERIALIZED (
	SELECT w.*, found.no AS run_no, last_seq, batches
	FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[])
		WITH ORDINALITY AS w (id, token, grant_id, owner, base, events, results, i)
	CROSS JOIN LATERAL (SELECT * FROM tapestore.runs WHERE runs.id = w.id OFFSET 0) AS found WHERE true{allowed}
), locked AS (
	SELECT w.* FROM seen AS w JOIN tapestore.runs ON runs.no = w.run_no AND {holds} AND (runs.last_seq, runs.batches) = (w.last_seq, w.batches)
		AND (NOT is_strict OR expires > clock_timestamp())
	FOR NO KEY UPDATE OF runs SKIP LOCKED
), ` + advance + ` FROM locked AS w WHERE runs.no = w.run_no` + returning

	// holds are the conditions on the row of a run.
	holds = `runs.id = {id} AND runs.token = {token} AND runs.grant_id = {grant} AND runs.owner = {owner} AND grant_state = 1 AND NOT purged
		AND (given_up IS NULL OR NOT given_up && $10::bigint[])`

	// unchanged has a sub-select, which PostgreSQL does not evaluate again.
	unchanged = `
		AND (runs.last_seq, runs.batches) = (SELECT seen.last_seq, seen.batches FROM tapestore.runs AS seen WHERE seen.id = {id})`

	// newIDs, atVersions and changed look each row up in a sub-select. As joins they might read all
	// results or records of the run.
	newIDs = `
		AND NOT EXISTS (SELECT FROM unnest($13::bigint[], $18::bytea[]) AS new (i, id)
			WHERE new.i = {i} AND (SELECT true FROM tapestore.batches WHERE run = {no} AND batches.id = new.id))`
	atVersions = `
		AND NOT EXISTS (SELECT FROM unnest($19::bigint[], $20::bytea[], $21::bigint[]) AS wanted (i, key, version)
			WHERE wanted.i = {i} AND wanted.version <> coalesce((SELECT version FROM tapestore.records WHERE run = {no} AND records.key = wanted.key), 0))`

	appendEvents = `, e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
	SELECT no, last_seq - events + n, last_position - events + n, nonce, token, now, kind, owner, data, CASE WHEN n = 1 THEN nullif({versions}, '{}') END
	FROM r JOIN unnest($8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[]) AS new (i, n, nonce, kind, data) USING (i)
)`

	// rememberIDs also forgets the oldest results, as tapestore.write does.
	rememberIDs = `, b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions, token, former_end)
	SELECT no, batches - results + n, last_seq - events + first, last_seq - events + last, now, nonce, id, {versions}, token, former_end
	FROM r JOIN unnest($13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[]) AS new (i, n, first, last, nonce, id) USING (i)
), kept AS MATERIALIZED (
	SELECT no, batches, (SELECT named.n FROM tapestore.batches AS named
		WHERE named.run = no AND get_byte(named.id, 0) <> 110 ORDER BY named.n DESC OFFSET 127 LIMIT 1) AS named
	FROM r WHERE batches / 128 > (batches - results) / 128
), forgotten AS (
	DELETE FROM tapestore.batches USING kept WHERE batches.run = kept.no AND batches.n < kept.batches - 256
		AND (get_byte(batches.id, 0) = 110 OR batches.n < kept.named)
)`

	// putRecords gives a new record a version above every one that a deleted record of the run had.
	putRecords = `, changed AS MATERIALIZED (
	SELECT new.*, no, token, now, last_seq - events + 1 + event AS seq, coalesce(former.version, version_floor) + 1 AS version, former.places
	FROM r JOIN unnest($22::bigint[], $23::bytea[], $24::bytea[], $25::integer[], $26::smallint[]) WITH ORDINALITY AS new (i, key, value, event, placed, k)
		USING (i) LEFT JOIN LATERAL (SELECT * FROM tapestore.records WHERE run = no AND records.key = new.key OFFSET 0) AS former ON true
), put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version, seq, seq, now, now, token, token, placed, key, value FROM changed
	ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, updated_seq = excluded.updated_seq, updated = excluded.updated,
		updated_token = excluded.updated_token, places = excluded.places, value = excluded.value
), gone AS (
	DELETE FROM tapestore.places USING changed WHERE changed.places > 0 AND places.run = changed.no AND places.key = changed.key
), placed AS (
	INSERT INTO tapestore.places (at, written, run, name, key)
	SELECT coalesce(at, now + after * interval '1 microsecond'), now, no, name, key
	FROM changed JOIN unnest($27::integer[], $28::bytea[], $29::timestamptz[], $30::bigint[]) AS new (k, name, at, after) USING (k)
)`

	// endAlone returns what tapestore.write answers as JSON: that costs those nothing that do not
	// need it.
	endAlone = `
SELECT now, last_seq, {versions}, CASE WHEN now IS NULL AND set_config('bytea_output', 'hex', true) || set_config('timezone', 'UTC', true) <> '' THEN to_jsonb(tapestore.write(
	0::smallint, {id}, ($10::bigint[])[1], {name}, {token}, {grant}, {owner}, NULL, NULL, NULL, {guarded}, NULL, NULL, NULL, false, 0, NULL, NULL,
	0, $11::bytea[], $12::bytea[], {records}, NULL, false, NULL, NULL, false, false, false, false)) END
FROM (SELECT) AS one LEFT JOIN r ON true`

	endTogether = `
SELECT array_agg(i), array_agg(now), array_agg(last_seq), {all versions} FROM r`
)

// form is the kind of a commit's statement, with its parts.
type form struct {
	together, alone, ids, records bool
}

// commitStatement is a text, and which of the 30 arguments it has.
type commitStatement struct {
	sql  string
	args []int
}

var commitStatements = map[form]commitStatement{}

func init() {
	both := []bool{false, true}
	for _, ids := range both {
		for _, records := range both {
			commitStatements[form{alone: true, ids: ids, records: records}] = commitStatement{}
			commitStatements[form{together: true, ids: ids, records: records}] = commitStatement{}
		}
		commitStatements[form{ids: ids}] = commitStatement{} // merged
	}
	for f := range commitStatements {
		commitStatements[f] = f.statement()
	}
}

var parameter = regexp.MustCompile(`\$[0-9]+`)

// statement returns the statement of a form. Its parameters are numbered anew, because none may
// be left out.
func (f form) statement() commitStatement {
	allowed := ""
	name, guarded, records := "NULL", "NULL, NULL", strings.Repeat("NULL, ", 6)+"NULL"
	versions, allVersions := "'{}'::bigint[]", "'{}'::bigint[]"
	if (f.ids || f.records) && !f.together {
		allowed += unchanged
	}
	if f.ids {
		allowed += newIDs
		name = "($18::bytea[])[1]"
	}
	if f.records {
		allowed += atVersions
		guarded = "$20::bytea[], $21::bigint[]"
		records = "$23::bytea[], $24::bytea[], $25::integer[], $27::integer[], $28::bytea[], $29::timestamptz[], $30::bigint[]"
		versions = "ARRAY(SELECT version FROM changed WHERE changed.i = r.i ORDER BY k)"
		allVersions = "ARRAY(SELECT version FROM changed ORDER BY k)"
	}
	sql := updateOne
	values := []string{
		"{id}", "$1::bytea", "{token}", "$2::bigint", "{grant}", "$3::bytea", "{owner}", "$4::bytea",
		"{base}", "$5::bigint", "{events}", "$6::bigint", "{results}", "$7::bigint", "{i}", "1::bigint", "{no}", "runs.no",
	}
	if f.together {
		sql = updateMany
		values = []string{
			"{id}", "w.id", "{token}", "w.token", "{grant}", "w.grant_id", "{owner}", "w.owner",
			"{base}", "w.base", "{events}", "w.events", "{results}", "w.results", "{i}", "w.i", "{no}", "found.no",
		}
	}
	if f.records {
		sql += putRecords
	}
	sql += appendEvents
	if f.ids {
		sql += rememberIDs
	}
	if f.alone {
		sql += endAlone
	} else {
		sql += endTogether
	}
	sql = strings.NewReplacer("{holds}", holds, "{allowed}", allowed).Replace(sql)
	sql = strings.NewReplacer(append(values, "{versions}", versions, "{all versions}", allVersions,
		"{name}", name, "{guarded}", guarded, "{records}", records)...).Replace(sql)
	var args []int
	sql = parameter.ReplaceAllStringFunc(sql, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		at := slices.Index(args, n-1)
		if at < 0 {
			at = len(args)
			args = append(args, n-1)
		}
		return "$" + strconv.Itoa(at+1)
	})
	return commitStatement{sql, args}
}

// direct reports whether r is a commit for which there is a statement.
func (r *request) direct() bool { return r.write != nil && !r.fence.IsZero() }

// plain reports whether r may share a statement with others of its run: it is direct, and reads and changes no record.
func (r *request) plain() bool {
	return r.direct() && len(r.write.keys) == 0 && len(r.write.guards) == 0
}

// direct reports whether there is a statement for a commit: it appends events under a fence, and
// at most checks versions, puts records and has an id.
func (c *write) direct() bool {
	deletes := slices.ContainsFunc(c.values, func(v []byte) bool { return v == nil })
	return !c.fence.IsZero() && c.token == nil && c.seq == nil && c.status == nil && len(c.payloads) > 0 && !deletes &&
		c.newStatus == nil && c.runnable.IsZero() && !c.release && !c.purge
}

// commitArgs are the arguments of a commit statement, see there.
type commitArgs struct {
	runs, grants, owners                   [][]byte
	tokens, bases, counts, results         []int64
	eventOf, eventNo                       []int64
	nonces                                 []*int64
	kinds, payloads                        [][]byte
	resultOf, resultNo, first, last, named []int64
	names                                  [][]byte
	guardOf, versions                      []int64
	guards                                 [][]byte
	recordOf                               []int64
	keys, values                           [][]byte
	explained                              []int32
	places                                 []int16
	placed                                 []int32
	indexes                                [][]byte
	times                                  []*time.Time
	afters                                 []*int64
}

// add adds the batches of one run. Positions of its events begin at base.
func (a *commitArgs) add(base int64, group []*request) {
	f := group[0].fence
	run, n, results := int64(len(a.runs)+1), int64(0), int64(0)
	for _, r := range group {
		w := r.write
		if r.result != nil {
			a.resultOf, a.resultNo = append(a.resultOf, run), append(a.resultNo, results)
			a.first, a.last = append(a.first, n+1), append(a.last, n+int64(len(w.payloads)))
			a.named, a.names = append(a.named, r.nonce), append(a.names, r.result)
			results++
		}
		for k := range w.payloads {
			n++
			var nonce *int64
			if k == 0 {
				nonce = &r.nonce
			}
			a.eventOf, a.eventNo, a.nonces = append(a.eventOf, run), append(a.eventNo, n), append(a.nonces, nonce)
		}
		a.kinds, a.payloads = append(a.kinds, w.kinds...), append(a.payloads, w.payloads...)
		for _, g := range w.guards {
			a.guardOf, a.guards, a.versions = append(a.guardOf, run), append(a.guards, []byte(g.Key)), append(a.versions, int64(g.Version))
		}
		before, places := len(a.keys), make([]int16, len(w.keys))
		for i, record := range w.placed {
			places[record-1]++
			a.placed, a.indexes = append(a.placed, int32(before)+record), append(a.indexes, w.names[i])
		}
		a.times, a.afters = append(a.times, w.times...), append(a.afters, w.afters...)
		for range w.keys {
			a.recordOf = append(a.recordOf, run)
		}
		a.keys, a.values, a.explained = append(a.keys, w.keys...), append(a.values, w.values...), append(a.explained, w.explained...)
		a.places = append(a.places, places...)
	}
	a.runs, a.grants, a.owners = append(a.runs, []byte(f.Run())), append(a.grants, []byte(f.Grant())), append(a.owners, data([]byte(f.Owner())))
	a.tokens, a.bases = append(a.tokens, int64(f.Token())), append(a.bases, base)
	a.counts, a.results = append(a.counts, n), append(a.results, results)
}

// statement returns the statement for the batches that were added, and its arguments.
func (a *commitArgs) statement(f form) (sql string, args []any) {
	f.ids, f.records = len(a.names) > 0, len(a.keys) > 0 || len(a.guards) > 0
	all := []any{
		a.runs, a.tokens, a.grants, a.owners, a.bases, a.counts, a.results,
		a.eventOf, a.eventNo, a.nonces, a.kinds, a.payloads,
		a.resultOf, a.resultNo, a.first, a.last, a.named, a.names,
		a.guardOf, a.guards, a.versions,
		a.recordOf, a.keys, a.values, a.explained, a.places,
		a.placed, a.indexes, a.times, a.afters,
	}
	if !f.together {
		copy(all, []any{a.runs[0], a.tokens[0], a.grants[0], a.owners[0], a.bases[0], a.counts[0], a.results[0]})
	}
	s := commitStatements[f]
	for _, i := range s.args {
		args = append(args, all[i])
	}
	return s.sql, args
}

// commit makes the statement for batches of one run under one fence, whose events have
// positions from base on.
func (u *unit) commit(base int64) {
	var args commitArgs
	args.add(base, u.requests)
	alone := len(u.requests) == 1
	if u.read = u.readCommitted; !alone {
		u.groups, u.read = [][]*request{u.requests}, u.readTogether
	}
	u.sql, u.args = args.statement(form{alone: alone})
}

// readCommitted reads the answer of a statement for one batch: its own, or that of
// tapestore.write.
func (u *unit) readCommitted(rows pgx.Rows, a *answer) error {
	var now pgtype.Timestamptz
	var last pgtype.Int8
	var versions []runstore.Version
	var written []byte
	r := u.requests[0]
	if err := rows.Scan(&now, &last, &versions, &written); err != nil || written != nil {
		return errors.Join(err, a.fromJSON(written, r.run))
	}
	*a = answer{verdict: applied, now: timeOf(now), last: runstore.Seq(last.Int64), versions: versions}
	a.first = a.last - runstore.Seq(r.appends()) + 1
	return nil
}

// readTogether reads the answer of a statement for several batches, which has an element for
// each run that was not left out.
func (u *unit) readTogether(rows pgx.Rows, _ *answer) error {
	var which, last []int64
	var now []pgtype.Timestamptz
	var versions []runstore.Version
	if err := rows.Scan(&which, &now, &last, &versions); err != nil {
		return err
	}
	u.applied = make([]bool, len(u.groups))
	at := make([]int, len(u.groups))
	for k, i := range which {
		u.applied[i-1], at[i-1] = true, k
	}
	for i, group := range u.groups {
		if !u.applied[i] {
			continue
		}
		next := runstore.Seq(last[at[i]]) - runstore.Seq(appendsOf(group)) + 1
		for _, r := range group {
			puts := len(r.write.keys)
			r.answer = answer{verdict: applied, now: timeOf(now[at[i]]), first: next, last: next + runstore.Seq(r.appends()) - 1, versions: versions[:puts:puts]}
			next, versions = r.answer.last+1, versions[puts:]
		}
	}
	return nil
}

func appendsOf(group []*request) (n int) {
	for _, r := range group {
		n += r.appends()
	}
	return n
}
