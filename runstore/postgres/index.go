package postgres

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan walks an index in its own order, so its cost depends on the page and not on the size of
// the store. Each query selects the columns of the order first, then those of the entry. The upper
// bound is STABLE within the statement; otherwise no index could use it.
//
// A forward scan starts after its cursor, which is at or after the query's lower bound. A backward
// scan starts before its cursor and ends at the lower bound: {from} stands for that condition.
//
// The tables call an index entry a place: the table places has the entries of records, and the
// column place of runs is the run's key in the index of runnable runs.
const (
	scanRuns = `SELECT * FROM (
		SELECT runs.created AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id, ` + headColumns + `, ` + recordColumns + `,
			sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY runs.created, runs.no) - coalesce(octet_length(records.value), 0) AS before
		FROM (SELECT * FROM tapestore.runs
			WHERE NOT purged AND NOT unlisted AND created <= coalesce($1::timestamptz, statement_timestamp())
				AND (created, no) > ($2::timestamptz, $3::bigint){from}
			ORDER BY created, no LIMIT {limit}) runs` + withSummary + `
	) sized WHERE before <= $4::bigint ORDER BY o1, o3`

	due = `place <= coalesce($1::timestamptz, statement_timestamp())
		AND (place, created, no) > ($2::timestamptz, $3::timestamptz, $4::bigint){from}`
	live = `(grant_state = 1 AND expires > coalesce($1::timestamptz, statement_timestamp()))`
)

var (
	// scanRunnable skips runs whose index entries are due although their leases are live, because
	// they were renewed. If the first entries, as many as a page has, contain a skipped run, its
	// last part returns the place of the first such run, in a row without an id. If they contain
	// none, the page skipped none. See mover.
	scanRunnable = `SELECT * FROM (
		SELECT runs.place AS o1, runs.created AS o2, runs.no AS o3, ''::bytea AS o4, runs.id, ` + headColumns + `, ` + recordColumns + `,
			sum(coalesce(octet_length(records.value), 0)) OVER (ORDER BY runs.place, runs.created, runs.no) - coalesce(octet_length(records.value), 0) AS before
		FROM (SELECT * FROM tapestore.runs WHERE ` + due + ` AND NOT ` + live + `
			ORDER BY place, created, no LIMIT {limit}) runs` + withSummary + `
	) sized WHERE before <= $5::bigint
	UNION ALL SELECT min(place) FILTER (WHERE live), NULL, 0, NULL, NULL, ` + noHead + `, ` + noRecord + `, NULL FROM (
		SELECT place, ` + live + ` AS live FROM tapestore.runs WHERE ` + due + ` ORDER BY place, created, no LIMIT {limit}
	) first HAVING bool_or(live)
	ORDER BY o1, o2, o3`

	scanEntries = entryScan("", "octet_length(records.value)", "")

	// scanEntriesWithHeads also returns the head and the summary of each entry's run, and counts
	// the summary in the page's size.
	scanEntriesWithHeads = entryScan(headColumns+`, `+summaryColumns+`, `,
		`octet_length(records.value) + coalesce(octet_length(summary.value), 0)`,
		` LEFT JOIN tapestore.records AS summary ON summary.run = runs.no AND summary.key = 'run'::bytea`)

	summaryColumns = strings.ReplaceAll(recordColumns, "records.", "summary.")

	noHead, noRecord = nulls(headColumns), nulls(recordColumns)
)

// nulls returns as many NULLs as there are columns.
func nulls(columns string) string {
	return "NULL" + strings.Repeat(", NULL", strings.Count(columns, ","))
}

// entryScan returns the query for an index of records. columns are columns of the run, size is the
// size of an entry, and join adds a table to the page.
func entryScan(columns, size, join string) string {
	return `SELECT * FROM (
		SELECT p.at AS o1, p.written AS o2, p.run AS o3, p.key AS o4, runs.id, ` + columns + recordColumns + `,
			sum(` + size + `) OVER (ORDER BY p.at, p.written, p.run, p.key) - (` + size + `) AS before
		FROM (SELECT * FROM tapestore.places p
			WHERE p.name = $1::bytea AND p.at <= coalesce($2::timestamptz, statement_timestamp())
				AND (p.at, p.written, p.run, p.key) > ($3::timestamptz, $4::timestamptz, $5::bigint, $6::bytea){from}
				AND (SELECT true FROM tapestore.runs WHERE runs.no = p.run) -- of a purged run there may be some left
			ORDER BY p.at, p.written, p.run, p.key LIMIT {limit}) p
		JOIN tapestore.runs ON runs.no = p.run JOIN tapestore.records ON records.run = p.run AND records.key = p.key` + join + `
	) sized WHERE before <= $7::bigint ORDER BY o1, o2, o3, o4`
}

// bothWays returns the forward and the backward form of a scan. from is the condition that ends the
// backward scan.
func bothWays(query, from string) [2]string {
	return [2]string{
		strings.ReplaceAll(query, "{from}", ""),
		backwards(strings.ReplaceAll(query, "{from}", " AND "+from)),
	}
}

// backwards reverses the order of a scan.
func backwards(query string) string {
	var b strings.Builder
	for {
		head, rest, found := strings.Cut(query, "ORDER BY ")
		b.WriteString(strings.ReplaceAll(head, ") > (", ") < ("))
		if !found {
			return b.String()
		}
		end := strings.IndexAny(rest+")", ")\n")
		if limit := strings.Index(rest[:end], " LIMIT"); limit >= 0 {
			end = limit
		}
		b.WriteString("ORDER BY " + strings.ReplaceAll(rest[:end], ",", " DESC,") + " DESC")
		query = rest[end:]
	}
}

// indexKind selects the statements of a scan.
type indexKind string

const (
	ofRuns             indexKind = "runs"
	ofRunnable         indexKind = "runnable"
	ofEntries          indexKind = "queue"
	ofEntriesWithHeads indexKind = "queue with heads"
)

func indexKindOf(q runstore.IndexQuery) indexKind {
	switch {
	case q.Index == runstore.IndexRuns:
		return ofRuns
	case q.Index == runstore.IndexRunnable:
		return ofRunnable
	case q.Heads:
		return ofEntriesWithHeads
	default:
		return ofEntries
	}
}

// scans are the statements of each kind, forwards and backwards.
var scans = map[indexKind][2]string{
	ofRuns:             bothWays(scanRuns, "created >= $5::timestamptz"),
	ofRunnable:         bothWays(scanRunnable, "place >= $6::timestamptz"),
	ofEntries:          bothWays(scanEntries, "p.at >= $8::timestamptz"),
	ofEntriesWithHeads: bothWays(scanEntriesWithHeads, "p.at >= $8::timestamptz"),
}

// ScanIndex implements adapter.Core.
func (e *engine) ScanIndex(ctx context.Context, q runstore.IndexQuery) (found []runstore.IndexEntry, err error) {
	after, err := decodeCursor(q)
	if err != nil {
		return nil, err
	}
	err = e.read(ctx, func(rq *query) error {
		var due *time.Time
		if found, due, err = rq.scan(q, after); err == nil && due != nil {
			e.mover.move(*due, q.Until)
		}
		return err
	})
	return found, err
}

// scan reads a page of an index after a cursor. If it skipped runs whose entries should be moved,
// renewed is the place of the first of them.
func (q *query) scan(what runstore.IndexQuery, after cursor) (found []runstore.IndexEntry, renewed *time.Time, err error) {
	sql, args := scanOf(what, after)
	var at, written nullTime
	var no int64
	var key, id []byte
	var head nullHead
	var record, summary nullRecord
	var before *int64
	targets := []any{&at, &written, &no, &key, &id}
	kind := indexKindOf(what)
	if kind != ofEntries {
		targets = append(append(targets, head.targets()...), summary.targets()...)
	}
	if kind == ofEntries || kind == ofEntriesWithHeads {
		targets = append(targets, record.targets()...)
	}
	err = q.each(sql, args, append(targets, &before), func() error {
		if id == nil {
			first := timeOf(at)
			renewed = &first
			return nil
		}
		here := cursor{At: at.Time.UnixMicro(), Written: written.Time.UnixMicro(), Run: no, Key: key}
		e := runstore.IndexEntry{Run: runstore.RunID(id), At: timeOf(at), Cursor: adapter.EncodeCursor(here)}
		if kind != ofEntries {
			e.Head = head.head(e.Run).Run
			e.Head.Summary = summary.record(runstore.SummaryKey)
		}
		if kind == ofEntries || kind == ofEntriesWithHeads {
			e.Record = record.record(runstore.RecordKey(key))
		}
		found = append(found, e)
		return nil
	})
	return found, renewed, err
}

// scanOf returns the statement of a scan and its arguments.
func scanOf(q runstore.IndexQuery, after cursor) (sql string, args []any) {
	var until *time.Time
	if !q.Until.IsZero() {
		until = &q.Until
	}
	from := lowerBound(q)
	if !q.Newest && from.At > after.At {
		after = from
	}
	size := int64(runstore.MaxPageBytes)
	at, written := time.UnixMicro(after.At).UTC(), time.UnixMicro(after.Written).UTC()
	kind := indexKindOf(q)
	switch kind {
	case ofRuns:
		args = []any{until, at, after.Run, size}
	case ofRunnable:
		args = []any{until, at, written, after.Run, size}
	default:
		args = []any{[]byte(q.Index), until, at, written, after.Run, data(after.Key), size}
	}
	if q.Newest {
		return limited(scans[kind][1], q.Limit), append(args, time.UnixMicro(from.At).UTC())
	}
	return limited(scans[kind][0], q.Limit), args
}

// lowerBound returns the cursor before every entry at or after the query's lower bound.
func lowerBound(q runstore.IndexQuery) cursor {
	if q.From.IsZero() {
		return cursor{At: math.MinInt32}
	}
	from := q.From.Truncate(runstore.TimePrecision)
	if from.Before(q.From) { // entries are whole microseconds
		from = from.Add(runstore.TimePrecision)
	}
	return cursor{At: from.UnixMicro()}
}

// cursor is a position in an index: the columns of its order.
type cursor struct {
	At, Written, Run int64
	Key              []byte
}

// decodeCursor returns where a scan starts: at its cursor, or at the end of the index that it reads
// first.
func decodeCursor(q runstore.IndexQuery) (at cursor, err error) {
	if q.After == "" {
		if q.Newest {
			end := runstore.EndOfTime.UnixMicro()
			return cursor{At: end, Written: end, Run: math.MaxInt64}, nil
		}
		return lowerBound(runstore.IndexQuery{}), nil
	}
	if err := adapter.DecodeCursor(q.After, &at); err != nil {
		return at, err
	}
	if at.At > runstore.EndOfTime.UnixMicro() || at.Written > runstore.EndOfTime.UnixMicro() || at.At < math.MinInt32 {
		return at, adapter.Invalid("after", "is not a cursor of this store")
	}
	return at, nil
}
