package spanner

import (
	"cmp"
	"context"
	"math"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan is one statement. It reads the keys of the first entries of each shard in index
// order, sorts these and fetches the contents of the first @limit by key. The table Queue
// holds the contents of its entries, except for some values (see maxInlineEntries). The
// indexes of runs hold only columns that do not change with every commit, so their scans join Runs.
//
// A scan reads only the range of the index between its bounds. Forwards, the lower bound is
// part of the cursor (@o1); backwards, it is @from.
const (
	dueBy = `COALESCE(@until, CURRENT_TIMESTAMP())`

	scanQueue = `SELECT q.Due AS O1, q.UpdatedTime AS O2, q.RunHash AS O3, q.Run, q.Key, q.Shard
	FROM Queue AS q
	WHERE q.Name = @name AND q.Shard = one_shard AND q.Due <= ` + dueBy + ` AND q.Due >= @o1
		AND (q.Due > @o1 OR (q.UpdatedTime > @o2 OR (q.UpdatedTime = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3
			AND (q.Run > @run OR (q.Run = @run AND q.Key > @key)))))))
	ORDER BY q.Due, q.UpdatedTime, q.RunHash, q.Run, q.Key LIMIT @limit`
	orderQueue = `q.O1, q.O2, q.O3, q.Run, q.Key`

	scanRuns = `SELECT q.Listed AS O1, q.Listed AS O2, q.RunHash AS O3, q.Run
	FROM Runs@{FORCE_INDEX=RunsListed} AS q
	WHERE q.Shard = one_shard AND q.Listed IS NOT NULL AND q.Listed <= ` + dueBy + ` AND q.Listed >= @o1
		AND (q.Listed > @o1 OR (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))
	ORDER BY q.Listed, q.RunHash, q.Run LIMIT @limit`

	scanRunnable = `SELECT q.Place AS O1, q.Created AS O2, q.RunHash AS O3, q.Run
	FROM Runs@{FORCE_INDEX=RunsPlaced} AS q
	WHERE q.Shard = one_shard AND q.Place IS NOT NULL AND q.Created IS NOT NULL AND q.Place <= ` + dueBy + ` AND q.Place >= @o1
		AND (q.Place > @o1 OR (q.Created > @o2 OR (q.Created = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))))
	ORDER BY q.Place, q.Created, q.RunHash, q.Run LIMIT @limit`
	orderRuns = `q.O1, q.O2, q.O3, q.Run`
)

// withRecords returns the statement that fetches the records of a scan.
func withRecords(scan, order string) string {
	return recordsOf(scan, order, "", "")
}

// withRecordsAndHeads returns the statement that fetches the records of a scan and the heads of
// their runs.
func withRecordsAndHeads(scan, order string) string {
	return recordsOf(scan, order, ",\n\t"+headAndSummary, joinHeads)
}

// recordsOf returns the statement that fetches the records of a scan, with further columns from the
// tables that the SQL in more joins.
func recordsOf(scan, order, columns, more string) string {
	return `SELECT q.O1, q.O2, q.O3, q.Run, q.Key, q.Purged,
	v.Version, v.CreatedSeq, v.CreatedTime, v.UpdatedSeq, v.UpdatedTime, v.CreatedToken, v.UpdatedToken,
	IF(LENGTH(v.Value) = 0, w.Value, v.Value) AS Value` + columns + `
FROM (` + scan + `) AS q
JOIN Queue AS v ON v.Name = @name AND v.Shard = q.Shard AND v.Due = q.O1 AND v.UpdatedTime = q.O2 AND v.RunHash = q.O3
	AND v.Run = q.Run AND v.Key = q.Key
LEFT JOIN Records AS w ON LENGTH(v.Value) = 0 AND w.RunHash = q.O3 AND w.Run = q.Run AND w.Key = q.Key` + more + `
ORDER BY ` + order
}

// headAndSummary selects a run's head and summary record, from the rows that joinHeads joins.
const (
	headAndSummary = `ARRAY(SELECT AS STRUCT ` + headColumns + `) AS Head,
	ARRAY(SELECT AS STRUCT ` + recordColumns + ` FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue`
	joinHeads = `
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'`
)

// withHeads returns the statement that fetches the heads of the runs of a scan.
func withHeads(scan, order string) string {
	return `SELECT q.O1, q.O2, q.O3, q.Run,
	` + headAndSummary + `, h.GrantState = 1 AND h.Expires > ` + dueBy + ` AS Held
FROM (` + scan + `) AS q` + joinHeads + `
ORDER BY ` + order
}

// scanKind selects the statement of a scan.
type scanKind struct {
	index  runstore.IndexName // of runs, or empty: an index of records
	newest bool
	heads  bool // with an index of records; those of runs always have them
}

var scans = map[scanKind]string{
	{}:                              withRecords(perShard(scanQueue, orderQueue), orderQueue),
	{heads: true}:                   withRecordsAndHeads(perShard(scanQueue, orderQueue), orderQueue),
	{index: runstore.IndexRuns}:     withHeads(perShard(scanRuns, orderRuns), orderRuns),
	{index: runstore.IndexRunnable}: withHeads(perShard(scanRunnable, orderRuns), orderRuns),
	{newest: true}:                  withRecords(perShard(backwards(scanQueue), backwards(orderQueue)), backwards(orderQueue)),
	{newest: true, heads: true}:     withRecordsAndHeads(perShard(backwards(scanQueue), backwards(orderQueue)), backwards(orderQueue)),
	{index: runstore.IndexRuns, newest: true}:     withHeads(perShard(backwards(strings.Replace(scanRuns, "RunsListed", "RunsListedNewest", 1)), backwards(orderRuns)), backwards(orderRuns)),
	{index: runstore.IndexRunnable, newest: true}: withHeads(perShard(backwards(scanRunnable), backwards(orderRuns)), backwards(orderRuns)),
}

// backwards reverses a scan, or an ORDER BY list: the comparisons with the cursor (the parameters
// @o1 to @key) and the order are inverted, and the lower bound @from is added.
func backwards(text string) string {
	for _, bounded := range []string{"q.Due", "q.Listed", "q.Place"} {
		text = strings.ReplaceAll(text, bounded+" >= @o1", bounded+" >= @from AND "+bounded+" >= @o1")
	}
	for _, name := range []string{"o1", "o2", "o3", "run", "key"} {
		text = strings.ReplaceAll(text, " >= @"+name, " <= @"+name)
		text = strings.ReplaceAll(text, " > @"+name, " < @"+name)
	}
	before, order, found := strings.Cut(text, "ORDER BY ")
	if !found {
		before, order = "", text
	}
	order, limit, limited := strings.Cut(order, " LIMIT")
	order = strings.ReplaceAll(order, ",", " DESC,") + " DESC"
	if found {
		order = "ORDER BY " + order
	}
	if limited {
		order += " LIMIT" + limit
	}
	return before + order
}

// entry is a row of a scan.
type entry struct {
	O1           time.Time
	O2           time.Time
	O3           int64
	Run          []byte
	Key          []byte
	Version      spanner.NullInt64
	CreatedSeq   spanner.NullInt64
	CreatedTime  spanner.NullTime
	CreatedToken spanner.NullInt64
	UpdatedSeq   spanner.NullInt64
	UpdatedTime  spanner.NullTime
	UpdatedToken spanner.NullInt64
	Value        []byte
	Head         []*head
	Summary      []*record
	SummaryValue []byte
	Purged       spanner.NullBool
	Held         spanner.NullBool // the run's lease is live at the scan's upper bound
}

// ScanIndex implements adapter.Core.
func (s *engine) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return s.scan(ctx, spanner.StrongRead(), q)
}

// ScanIndexStale implements runstore.StaleReader. The nearest replica answers if its lag is within
// the bound. Candidates carry no heads, so the scan fetches none.
func (s *Store) ScanIndexStale(ctx context.Context, q runstore.IndexQuery, bound time.Duration) ([]runstore.Candidate, error) {
	invalid := cmp.Or(q.Check(), checkBound(bound))
	return adapter.Do(ctx, s.Store, "scan index", "", invalid, func(ctx context.Context) ([]runstore.Candidate, error) {
		q.Heads = false
		entries, err := s.engine.scan(ctx, staleness(bound), q)
		return runstore.ToCandidates(entries), err
	})
}

// scan returns a page of entries behind the query's cursor. It omits entries of runs that are being
// purged and, in the index of runnable runs, entries of renewed leases, which it passes to the
// mover. A page of nothing else is not the end: scan continues with larger pages.
func (s *engine) scan(ctx context.Context, bound spanner.TimestampBound, q runstore.IndexQuery) (entries []runstore.IndexEntry, err error) {
	at, err := decodeCursor(q)
	if err != nil {
		return nil, err
	}
	at = at.from(q)
	for limit := q.Limit; ; limit = min(4*limit, runstore.MaxPage) {
		rows, last := 0, entry{}
		var p adapter.Page
		var stale []seenGrant
		begin := func() { entries, rows, p, stale = nil, 0, adapter.NewPage(q.Limit), nil }
		err := s.eachAt(ctx, bound, "scan", scanOf(q, at, limit), begin, func(row *spanner.Row) (bool, error) {
			last = entry{}
			if err := row.ToStructLenient(&last); err != nil {
				return false, err
			}
			rows++
			if last.Purged.Bool {
				return true, nil
			}
			if q.Index == runstore.IndexRunnable && last.Held.Bool { // renewed since the entry was written
				stale = append(stale, seenGrant{last.O3, last.Run, last.Head[0].Token, last.Head[0].GrantID})
				return true, nil
			}
			one, err := last.public()
			entries = append(entries, one)
			return !p.Add(len(one.Record.Value) + len(one.Head.Summary.Value)), err
		})
		if err == nil {
			s.enqueueMove(stale)
		}
		if err != nil || len(entries) > 0 || rows < limit {
			return entries, err
		}
		at = last.cursor() // the page held only runs that are being purged or held
	}
}

// scanOf returns the statement of a scan that resumes behind a cursor and reads up to limit
// entries. limit exceeds the query's own after a page of which every entry was omitted.
func scanOf(q runstore.IndexQuery, at cursor, limit int) spanner.Statement {
	params := map[string]any{
		"limit": int64(limit), "until": nullTime(q.Until.Truncate(runstore.TimePrecision)),
		"o1": time.UnixMicro(at.O1).UTC(), "o3": at.O3, "run": at.Run,
	}
	if q.Index != runstore.IndexRuns {
		params["o2"] = time.UnixMicro(at.O2).UTC()
	}
	if q.Newest {
		params["from"] = time.UnixMicro(lowest(q)).UTC()
	}
	text, ofRuns := scans[scanKind{index: q.Index, newest: q.Newest}]
	if !ofRuns {
		text = scans[scanKind{newest: q.Newest, heads: q.Heads}]
		params["name"], params["key"] = stored(q.Index), at.Key
	}
	return spanner.Statement{SQL: text, Params: params}
}

// lowest returns the lower bound of a scan in microseconds: q.From rounded up, so that an entry of
// exactly that time is included. Without a bound it is 0, which is before all entries.
func lowest(q runstore.IndexQuery) int64 {
	bound := runstore.Micros(q.From)
	if q.From.Nanosecond()%int(runstore.TimePrecision) > 0 {
		bound++
	}
	return bound
}

// public returns the entry as callers see it.
func (e *entry) public() (one runstore.IndexEntry, err error) {
	one = runstore.IndexEntry{Run: runstore.RunID(e.Run), At: e.O1.UTC(), Cursor: adapter.EncodeCursor(e.cursor())}
	if len(e.Head) > 0 {
		f := runRow{e.Head, e.Summary, e.SummaryValue}
		if one.Head, err = f.run(); err != nil {
			return one, err
		}
	}
	if e.Version.Valid {
		r := record{
			Key: e.Key, Version: e.Version, CreatedSeq: e.CreatedSeq, CreatedTime: e.CreatedTime, CreatedToken: e.CreatedToken,
			UpdatedSeq: e.UpdatedSeq, UpdatedTime: e.UpdatedTime, UpdatedToken: e.UpdatedToken, Value: e.Value,
		}
		one.Record = r.public()
	}
	return one, nil
}

// cursor is the sort key of an entry in its index.
type cursor struct {
	O1, O2, O3 int64
	Run, Key   []byte
}

func (e *entry) cursor() cursor {
	return cursor{e.O1.UnixMicro(), e.O2.UnixMicro(), e.O3, e.Run, stored(e.Key)}
}

// from returns the cursor that a scan starts behind: c, or for a forward scan with a later lower
// bound the cursor before all entries of that time.
func (c cursor) from(q runstore.IndexQuery) cursor {
	if bound := lowest(q); !q.Newest && c.O1 < bound {
		return cursor{O1: bound, O3: math.MinInt64, Run: []byte{}, Key: []byte{}}
	}
	return c
}

// decodeCursor returns the cursor of the query's After. If that is empty, the cursor is before all
// entries, or behind all for a scan of the newest.
func decodeCursor(q runstore.IndexQuery) (at cursor, err error) {
	at = cursor{O1: 0, Run: []byte{}, Key: []byte{}}
	if q.Newest {
		at.O1 = runstore.EndOfTime.UnixMicro()
		at.O2, at.O3 = at.O1, 1<<63-1
		at.Run = append(at.Run, make([]byte, runstore.MaxRunID+1)...)
		for i := range at.Run {
			at.Run[i] = 0xff
		}
	}
	if q.After == "" {
		return at, nil
	}
	at = cursor{}
	if err := adapter.DecodeCursor(q.After, &at); err != nil {
		return at, err
	}
	if last := runstore.EndOfTime.UnixMicro(); at.O1 < 0 || at.O1 > last || at.O2 < 0 || at.O2 > last || len(at.Run) == 0 {
		return at, adapter.Invalid("after", "is not a cursor of this store")
	}
	at.Key = stored(at.Key)
	return at, nil
}
