package postgres

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A commit that appends events under a fence is one SQL statement. The statement may also store a
// result under an id, check versions, and put records with their index entries. It has three forms:
//
//	alone   one batch; if it is not applied, the statement calls tapestore.write
//	merged  several batches of events for one run, under one fence
//	multi   batches for several runs; skips each run whose row is locked
//
// It is not simple because a statement has one snapshot and may then wait for the row of its run.
// What the statement reads of other tables may be out of date by the time it has the lock. Its
// invariants:
//
//  1. The fence, the expiry of a strict lease and the voided nonces are conditions on the row of
//     the run. PostgreSQL evaluates them on the row that it locks:
//     https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
//  2. In the snapshot, the run has no result under the id, and every guarded record has the
//     expected version.
//  3. What is new in the snapshot, an id or a record, is new under the lock too. Otherwise a unique
//     index refuses the statement, and it is sent again with a newer snapshot.
//  4. If a record exists already, last_seq and batches of the locked row equal those of the
//     snapshot. Every write that changes records of a run changes one of the two. So the versions
//     in the snapshot are current.
//  5. If a condition does not hold, the statement changes nothing. tapestore.write, which is
//     VOLATILE and so has a newer snapshot, then returns the first result of the id, explains the
//     refusal, or applies a batch that had only lost a race against another writer, in the same
//     round trip. The batches of the other forms are sent again, each in a statement of its own.
//
// Outline: a form selects the parts; form.statement assembles the text, once per form; commitArgs
// collects the arguments. A statement has only the parts that its batches need, because each part
// costs 10 to 100 µs of the server's time, used or not. For the same reason an append of one event,
// with at most one guard and one record, has a form with scalars where the others have arrays; what
// few appends need is left out unless a hint asks for it (hints.go); and a record that is guarded
// to be new is only inserted.
//
// Rejected: tapestore.write for every commit. PL/pgSQL runs about ten statements for what is one
// here, in twice the server's time, and for one run only (BenchmarkAppend).
//
// $1 to $7 are scalars, or arrays with one element per run where there are several: run, token,
// grant, owner, position of transaction 0, number of events, number of ids. The others are arrays
// that begin with the number of the run, from 1. $8 to $12, events: run, number within the run from
// 1, nonce, kind, data. $13 to $18, ids: run, number within the run from 0, first and last event of
// the batch, nonce, key of the result. $19 to $21, guards: run, key, version. $22 to $26, records:
// run, key, value, event from 0, number of index entries. $27 to $30, index entries: record from 1,
// index, time, microseconds after the commit. A statement for one event takes $10 to $25 as
// scalars, and $31, the number of the last transaction that has a position.
const (
	advance = `r AS (
	UPDATE tapestore.runs SET progressed = clock_timestamp(){advanced}`

	// advanceSeq and advanceResults are what changes in a run's row with its events and its
	// results.
	advanceSeq     = `, last_seq = runs.last_seq + {events}, last_position = {last position}`
	advanceResults = `, batches = runs.batches + {results}`

	// firstPosition is the position of the first event, see feed.go. txid_current returns what
	// pg_current_xact_id does, as a number.
	firstPosition = `greatest(runs.last_position + 1, {base} + (txid_current() << 14))`
	lastPosition  = firstPosition + ` + {events} - 1`

	// room is the condition that the last position does not exceed runstore.MaxPosition. roomForOne
	// is the same for one event, by the highest number of a transaction that has a position. It is
	// one condition, because a condition on the number alone would be another node of the plan.
	room       = ` AND ` + lastPosition + ` < 9007199254740992`
	roomForOne = ` AND runs.last_position < CASE WHEN txid_current() <= $31::bigint THEN 9007199254740991 END`

	returning = `
	RETURNING no, runs.token, runs.owner, runs.last_seq, last_position, progressed AS now{counts}
)`
	counts = `, runs.batches, version_floor, former_end,
		{i} AS i, {events} AS events, {results} AS results`

	// updateOne locks the row of one run, waiting if need be; see timely.
	updateOne = `WITH ` + advance + `
	WHERE {holds}{allowed}{timely}` + returning

	// updateMany locks the rows of several runs and skips those that are locked. It finds each run
	// by a sub-select, because a join might read all runs.
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

	// holds is the fence as conditions on the row of a run.
	holds = `runs.id = {id} AND runs.token = {token} AND runs.grant_id = {grant} AND runs.owner = {owner} AND grant_state = 1 AND NOT purged
		AND (void_nonces IS NULL OR {not voided}){room}`

	// untimed excludes the leases for which the time matters; tapestore.write handles them, see
	// timely.
	untimed = `
		AND NOT is_strict AND max_stall = 0`

	// unchanged is invariant 4. Its sub-select is not evaluated again when the statement has waited
	// for the row, so it compares the locked row with the snapshot.
	unchanged = `
		AND (runs.last_seq, runs.batches) = (SELECT seen.last_seq, seen.batches FROM tapestore.runs AS seen WHERE seen.id = {id})`

	newID = `
		AND (SELECT true FROM tapestore.batches WHERE run = {no} AND batches.id = $18::bytea) IS NULL`
	newRecord = `
		AND (SELECT true FROM tapestore.records WHERE run = {no} AND records.key = $23::bytea) IS NULL`

	// newIDs, atVersions and changed look up each row in a sub-select. As joins they might read all
	// results or records of the run.
	newIDs = `
		AND NOT EXISTS (SELECT FROM unnest($13::bigint[], $18::bytea[]) AS new (i, id)
			WHERE new.i = {i} AND (SELECT true FROM tapestore.batches WHERE run = {no} AND batches.id = new.id))`
	atVersions = `
		AND NOT EXISTS (SELECT FROM {guard rows} AS wanted (i, key, version)
			WHERE wanted.i = {i} AND wanted.version <> coalesce((SELECT version FROM tapestore.records WHERE run = {no} AND records.key = wanted.key), 0))`

	appendEvents = `, e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
	SELECT no, last_seq - events + n, last_position - events + n, nonce, token, now, kind, owner, data, CASE WHEN n = 1 THEN nullif({versions}, '{}') END
	FROM r JOIN {event rows} AS new (i, n, nonce, kind, data) USING (i)
)`

	appendEvent = `, e AS (
	INSERT INTO tapestore.events (run, seq, position, nonce, token, time, kind, owner, data, versions)
	SELECT no, last_seq, last_position, $10::bigint, token, now, $11::bytea, owner, $12::bytea, {event versions} FROM r
)`

	insertResults = `, b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions, token, former_end)
	SELECT no, batches - results + n, last_seq - events + first, last_seq - events + last, now, nonce, id, {versions}, token, former_end
	FROM r JOIN {id rows} AS new (i, n, first, last, nonce, id) USING (i)
)`

	insertResult = `, b AS (
	INSERT INTO tapestore.batches (run, n, first_seq, last_seq, at, nonce, id, versions, token, former_end)
	SELECT no, batches - 1, {first seq}, last_seq, now, $10::bigint, $18::bytea, {versions}, token, former_end FROM r
)`

	// evictResults deletes the oldest results of a run, as tapestore.write does.
	evictResults = `, kept AS MATERIALIZED (
	SELECT no, batches, (SELECT named.n FROM tapestore.batches AS named
		WHERE named.run = no AND get_byte(named.id, 0) <> 110 ORDER BY named.n DESC OFFSET 127 LIMIT 1) AS named
	FROM r
), forgotten AS (
	DELETE FROM tapestore.batches USING kept WHERE batches.run = kept.no AND batches.n < kept.batches - 256
		AND (get_byte(batches.id, 0) = 110 OR batches.n < kept.named)
)`

	// putRecords gives a new record a version above that of every deleted record of the run.
	putRecords = `, changed AS MATERIALIZED (
	SELECT new.*, no, token, now, last_seq - events + least(1 + event, events) AS seq, coalesce(former.version, version_floor) + 1 AS version, former.places
	FROM r JOIN {record rows} AS new (i, key, value, event, placed, k)
		USING (i) LEFT JOIN LATERAL (SELECT * FROM tapestore.records WHERE run = no AND records.key = new.key OFFSET 0) AS former ON true
), put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version, seq, seq, now, now, token, token, placed, key, value FROM changed
	ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, updated_seq = excluded.updated_seq, updated = excluded.updated,
		updated_token = excluded.updated_token, places = excluded.places, value = excluded.value
), gone AS (
	DELETE FROM tapestore.places USING changed WHERE changed.places > 0 AND places.run = changed.no AND places.key = changed.key
)`

	// putRecord is putRecords for one record without index entries.
	putRecord = `, changed AS MATERIALIZED (
	SELECT no, token, now, last_seq, coalesce(former.version, version_floor) + 1 AS version, former.places
	FROM r LEFT JOIN LATERAL (SELECT * FROM tapestore.records WHERE run = no AND records.key = $23::bytea OFFSET 0) AS former ON true
), put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version, last_seq, last_seq, now, now, token, token, 0, $23::bytea, $24::bytea FROM changed
	ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, updated_seq = excluded.updated_seq, updated = excluded.updated,
		updated_token = excluded.updated_token, places = excluded.places, value = excluded.value
), gone AS (
	DELETE FROM tapestore.places USING changed WHERE changed.places > 0 AND places.run = changed.no AND places.key = $23::bytea
)`

	putEntries = `, placed AS (
	INSERT INTO tapestore.places (at, written, run, name, key)
	SELECT coalesce(at, now + after * interval '1 microsecond'), now, no, name, key
	FROM changed JOIN unnest($27::integer[], $28::bytea[], $29::timestamptz[], $30::bigint[]) AS new (k, name, at, after) USING (k)
)`

	// insertRecord is putRecord for one record that is guarded to be new.
	insertRecord = `, put AS (
	INSERT INTO tapestore.records (run, version, created_seq, updated_seq, created, updated, created_token, updated_token, places, key, value)
	SELECT no, version_floor + 1, last_seq, last_seq, now, now, token, token, 0, $23::bytea, $24::bytea FROM r
)`

	// endAlone returns the result of tapestore.commit_fenced as JSON, so that commits which do not
	// call it pay nothing for its columns.
	endAlone = `
SELECT now, last_seq, CASE WHEN now IS NULL THEN tapestore.commit_fenced({id}, {nonce}, {name}, {token}, {grant}, {owner},
	{guarded}, {kinds}, {data}, {records}) END{answers}
FROM (SELECT) AS one LEFT JOIN r ON true`

	endMulti = `
SELECT array_agg(i), array_agg(now), array_agg(last_seq), {all versions}, array_agg(batches) FROM r`
)

// form identifies a variant of the commit statement by the parts that it has.
type form struct {
	multi, alone bool
	oneEvent     bool // alone, with one event, at most one guard, and at most one record, without index entries
	noEvent      bool // oneEvent, but without the event

	ids, guards, puts bool // except with oneEvent, guards and puts are set together, and index entries belong to them
	inserts           bool // one record, which is guarded to be new; then guards and puts are unset

	timed  bool // see hints
	evicts bool // see hints
}

// commitStatement is the text of a statement and the indexes of its arguments among the 31.
type commitStatement struct {
	sql  string
	args []int
}

// commitStatements has every form. A text is built on first use.
var commitStatements = map[form]func() commitStatement{}

func init() {
	both := []bool{false, true}
	for _, records := range both {
		for _, ids := range both {
			addForms(form{multi: true, ids: ids, guards: records, puts: records})
			for _, timed := range both {
				addForms(form{ids: ids, timed: timed}) // merged
				for _, forgets := range both {
					f := form{alone: true, ids: ids, timed: timed, evicts: forgets && ids}
					array, one, guarded, put, fresh := f, f, f, f, f
					array.guards, array.puts = records, records
					one.oneEvent, one.guards, one.puts = true, records, records
					guarded.oneEvent, guarded.guards = true, true
					put.oneEvent, put.puts = true, true
					fresh.oneEvent, fresh.inserts = true, true
					addForms(array, one, guarded, put, fresh)
					if ids { // an event or an id carries the nonce; without an event the nonce serves as the id
						one.noEvent, put.noEvent, fresh.noEvent = records, true, true
						addForms(one, put, fresh)
					}
				}
			}
		}
	}
}

func addForms(all ...form) {
	for _, f := range all {
		commitStatements[f] = sync.OnceValue(f.statement)
	}
}

var parameter = regexp.MustCompile(`\$[0-9]+`)

// ofOne are the values of the placeholders in the text of a statement for one run. ofMany are those
// that differ for several runs, scalars those that differ for one event.
var (
	ofOne = []string{
		"{id}", "$1::bytea", "{token}", "$2::bigint", "{grant}", "$3::bytea", "{owner}", "$4::bytea", "{base}", "$5::bigint",
		"{i}", "1::bigint", "{no}", "runs.no", "{events}", "$6::bigint", "{results}", "$7::bigint",
		"{event rows}", "unnest($8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[])",
		"{id rows}", "unnest($13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[])",
		"{guard rows}", "unnest($19::bigint[], $20::bytea[], $21::bigint[])",
		"{record rows}", "unnest($22::bigint[], $23::bytea[], $24::bytea[], $25::integer[], $26::smallint[]) WITH ORDINALITY",
		"{not voided}", "NOT void_nonces && $10::bigint[]", "{timely}", untimed,
		"{nonce}", "($10::bigint[])[1]", "{kinds}", "$11::bytea[]", "{data}", "$12::bytea[]",
		"{last position}", lastPosition, "{room}", room, "{counts}", counts,
	}
	ofMany = []string{
		"{id}", "w.id", "{token}", "w.token", "{grant}", "w.grant_id", "{owner}", "w.owner", "{base}", "w.base",
		"{i}", "w.i", "{no}", "found.no", "{events}", "w.events", "{results}", "w.results",
	}
	scalars = []string{
		"{events}", "1", "{results}", "1", "{first seq}", "last_seq", "{counts}", "{counted}",
		"{guard rows}", "(SELECT 1::bigint, $20::bytea, $21::bigint)",
		"{not voided}", "$10::bigint <> ALL (void_nonces)",
		"{nonce}", "$10::bigint", "{kinds}", "ARRAY[$11::bytea]", "{data}", "ARRAY[$12::bytea]",
		"{last position}", firstPosition, "{room}", roomForOne,
	}
)

// statement returns the statement of a form.
func (f form) statement() commitStatement {
	allowed, advanced := "", advanceSeq+advanceResults
	name, guarded, records := "NULL", "NULL, NULL", strings.Repeat("NULL, ", 6)+"NULL"
	versions, allVersions, eventVersions := "'{}'::bigint[]", "'{}'::bigint[]", "NULL"
	var parts []string
	// The columns that the run's row returns to the other parts and to the result, for one event.
	var counted, answers string
	if f.ids || !f.oneEvent {
		counted, answers = ", runs.batches, former_end", ", batches"
	} else {
		advanced = advanceSeq
	}
	if f.puts || f.inserts {
		counted, answers = counted+", version_floor", answers+", {versions}"
	}
	if f.noEvent {
		advanced = advanceResults
	}
	if (f.guards || f.puts) && !f.multi {
		allowed += unchanged
	}
	if f.ids {
		allowed += f.choose(newID, newIDs)
		name = f.choose("$18::bytea", "($18::bytea[])[1]")
	}
	if f.guards {
		allowed += atVersions
		guarded = f.choose("ARRAY[$20::bytea], ARRAY[$21::bigint]", "$20::bytea[], $21::bigint[]")
	}
	if f.puts {
		parts = append(parts, f.choose(putRecord, putRecords+putEntries))
		records = "$23::bytea[], $24::bytea[], $25::integer[], $27::integer[], $28::bytea[], $29::timestamptz[], $30::bigint[]"
		versions = f.choose("ARRAY(SELECT version FROM changed)", "ARRAY(SELECT version FROM changed WHERE changed.i = r.i ORDER BY k)")
		allVersions = "ARRAY(SELECT version FROM changed ORDER BY k)"
	}
	if f.inserts {
		allowed += newRecord
		parts = append(parts, insertRecord)
		guarded = "ARRAY[$23::bytea], ARRAY[0::bigint]"
		versions = "ARRAY[coalesce(version_floor, 0) + 1]"
	}
	if f.oneEvent && (f.puts || f.inserts) {
		eventVersions = versions
		records = "ARRAY[$23::bytea], ARRAY[$24::bytea], ARRAY[$25::integer], NULL, NULL, NULL, NULL"
	}
	if !f.noEvent {
		parts = append(parts, f.choose(appendEvent, appendEvents))
	}
	if f.ids {
		parts = append(parts, f.choose(insertResult, insertResults))
	}
	if f.evicts {
		parts = append(parts, evictResults)
	}
	sql, end := updateOne, endAlone
	if f.multi {
		sql = updateMany
	}
	if !f.alone {
		end = endMulti
	}
	sql += strings.Join(parts, "") + end
	values := append(f.values(), "{holds}", holds, "{allowed}", allowed, "{advanced}", advanced, "{versions}", versions, "{all versions}", allVersions, "{event versions}", eventVersions, "{answers}", answers, "{counted}", counted,
		"{name}", name, "{guarded}", guarded, "{records}", records)
	for replace, was := strings.NewReplacer(values...), ""; sql != was; { // values may contain placeholders
		was, sql = sql, replace.Replace(sql)
	}
	return numbered(sql)
}

// values returns pairs of a placeholder and its value. If a placeholder occurs twice, the first
// value counts.
func (f form) values() (all []string) {
	if f.noEvent {
		all = append(all, "{room}", "", "{kinds}", "NULL", "{data}", "NULL", "{first seq}", "0")
	}
	if f.timed {
		all = append(all, "{timely}", timely)
	}
	if f.oneEvent {
		all = append(all, scalars...)
	}
	if f.multi {
		all = append(all, ofMany...)
	}
	return append(all, ofOne...)
}

// numbered renumbers the parameters of a statement, because PostgreSQL lets none be left out.
func numbered(sql string) commitStatement {
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

// choose returns one for a statement with scalars, and other for a statement with arrays.
func (f form) choose(one, other string) string {
	if f.oneEvent {
		return one
	}
	return other
}
