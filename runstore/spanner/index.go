package spanner

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// A scan is one statement: the first entries of each shard, read in the order of the key,
// and of these the first, whose contents are then fetched by key. The table Queue holds all
// that a scan returns. The indexes of runs hold only what does not change with every commit.
const (
	dueBy = `COALESCE(@until, CURRENT_TIMESTAMP())`

	scanQueue = `SELECT q.Due AS O1, q.UpdatedTime AS O2, q.RunHash AS O3, q.Run, q.Key, q.Shard
	FROM Queue AS q
	WHERE q.Name = @name AND q.Shard = one_shard AND q.Due <= ` + dueBy + ` AND q.Due >= @o1
		AND (q.Due > @o1 OR (q.UpdatedTime > @o2 OR (q.UpdatedTime = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3
			AND (q.Run > @run OR (q.Run = @run AND q.Key > @key)))))))
	ORDER BY q.Due, q.UpdatedTime, q.RunHash, q.Run, q.Key LIMIT @limit`
	orderQueue = `q.O1, q.O2, q.O3, q.Run, q.Key`

	scanRuns = `SELECT q.Created AS O1, q.Created AS O2, q.RunHash AS O3, q.Run
	FROM Runs@{FORCE_INDEX=RunsByCreation} AS q
	WHERE q.Shard = one_shard AND q.Created IS NOT NULL AND q.Created <= ` + dueBy + ` AND q.Created >= @o1
		AND (q.Created > @o1 OR (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))
	ORDER BY q.Created, q.RunHash, q.Run LIMIT @limit`

	scanRunnable = `SELECT q.Runnable AS O1, q.Created AS O2, q.RunHash AS O3, q.Run
	FROM Runs@{FORCE_INDEX=RunsRunnable} AS q
	WHERE q.Shard = one_shard AND q.Runnable IS NOT NULL AND q.Created IS NOT NULL AND q.Runnable <= ` + dueBy + ` AND q.Runnable >= @o1
		AND (q.Runnable > @o1 OR (q.Created > @o2 OR (q.Created = @o2 AND (q.RunHash > @o3 OR (q.RunHash = @o3 AND q.Run > @run)))))
		AND NOT (q.GrantState = 1 AND q.Expires > ` + dueBy + `)
	ORDER BY q.Runnable, q.Created, q.RunHash, q.Run LIMIT @limit`
	orderRuns = `q.O1, q.O2, q.O3, q.Run`
)

// withRecords fetches the records of a scan.
func withRecords(scan, order string) string {
	return `SELECT q.O1, q.O2, q.O3, q.Run, q.Key, q.Purged,
	v.Version, v.CreatedSeq, v.CreatedTime, v.UpdatedSeq, v.UpdatedTime, v.Value
FROM (` + scan + `) AS q
JOIN Queue AS v ON v.Name = @name AND v.Shard = q.Shard AND v.Due = q.O1 AND v.UpdatedTime = q.O2 AND v.RunHash = q.O3
	AND v.Run = q.Run AND v.Key = q.Key
ORDER BY ` + order
}

// withHeads fetches the runs of a scan.
func withHeads(scan, order string) string {
	return `SELECT q.O1, q.O2, q.O3, q.Run,
	ARRAY(SELECT AS STRUCT ` + headColumns + `) AS Head,
	ARRAY(SELECT AS STRUCT ` + recordColumns + ` FROM UNNEST([k.Version]) AS version WHERE version IS NOT NULL) AS Summary,
	k.Value AS SummaryValue
FROM (` + scan + `) AS q
JOIN Runs AS h ON h.RunHash = q.O3 AND h.Run = q.Run
LEFT JOIN Records AS k ON k.RunHash = q.O3 AND k.Run = q.Run AND k.Key = b'run'
ORDER BY ` + order
}

// scans are the statements, by index and direction.
var scans = map[bool]map[runstore.IndexName]string{
	false: {
		"":                     withRecords(perShard(scanQueue, orderQueue), orderQueue),
		runstore.IndexRuns:     withHeads(perShard(scanRuns, orderRuns), orderRuns),
		runstore.IndexRunnable: withHeads(perShard(scanRunnable, orderRuns), orderRuns),
	},
	true: {
		"":                     withRecords(perShard(backwards(scanQueue), backwards(orderQueue)), backwards(orderQueue)),
		runstore.IndexRuns:     withHeads(perShard(backwards(strings.Replace(scanRuns, "RunsByCreation", "RunsByCreationNewest", 1)), backwards(orderRuns)), backwards(orderRuns)),
		runstore.IndexRunnable: withHeads(perShard(backwards(scanRunnable), backwards(orderRuns)), backwards(orderRuns)),
	},
}

// backwards turns a scan, or its order, around: the bounds by the cursor, which alone are
// named @o1 to @key, and the order.
func backwards(text string) string {
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
	UpdatedSeq   spanner.NullInt64
	UpdatedTime  spanner.NullTime
	Value        []byte
	Head         []*head
	Summary      []*record
	SummaryValue []byte
	Purged       spanner.NullBool
}

// ScanIndex implements runstore.RunStore.
func (s *Store) ScanIndex(ctx context.Context, q runstore.IndexQuery) (entries []runstore.IndexEntry, err error) {
	at, invalid := decodeCursor(q)
	if e := q.Check(); e != nil {
		invalid = e
	}
	err = s.op(ctx, "scan index", "", invalid, func(ctx context.Context) error {
		entries, err = s.scan(ctx, spanner.StrongRead(), q, at)
		return err
	})
	return entries, err
}

// ScanIndexStale implements runstore.StaleReader: the nearest replica answers if it is not
// further behind than the bound.
func (s *Store) ScanIndexStale(ctx context.Context, q runstore.IndexQuery, bound time.Duration) (candidates []runstore.Candidate, err error) {
	at, invalid := decodeCursor(q)
	for _, e := range []error{checkBound(bound), q.Check()} {
		if e != nil {
			invalid = e
		}
	}
	err = s.op(ctx, "scan index", "", invalid, func(ctx context.Context) error {
		entries, err := s.scan(ctx, staleness(bound), q, at)
		candidates = runstore.CandidatesOf(entries)
		return err
	})
	return candidates, err
}

func (s *Store) scan(ctx context.Context, bound spanner.TimestampBound, q runstore.IndexQuery, at cursor) (entries []runstore.IndexEntry, err error) {
	for {
		rows, last := 0, entry{}
		var p page
		err := s.eachAt(ctx, bound, "scan", scanOf(q, at), func() { entries, rows, p = nil, 0, page{left: q.Limit} }, func(row *spanner.Row) (bool, error) {
			last = entry{}
			if err := row.ToStructLenient(&last); err != nil {
				return false, err
			}
			rows++
			if last.Purged.Bool {
				return true, nil
			}
			one, err := last.public()
			entries = append(entries, one)
			return p.more(len(one.Record.Value) + len(one.Head.Summary.Value)), err
		})
		if err != nil || len(entries) > 0 || rows < q.Limit {
			return entries, err
		}
		at = last.place() // a page of runs that are being purged
	}
}

// scanOf is the statement of a scan behind a place.
func scanOf(q runstore.IndexQuery, at cursor) spanner.Statement {
	params := map[string]any{
		"limit": int64(q.Limit), "until": nullTime(q.Until.Truncate(runstore.TimePrecision)),
		"o1": time.UnixMicro(at.O1).UTC(), "o3": at.O3, "run": at.Run,
	}
	if q.Index != runstore.IndexRuns {
		params["o2"] = time.UnixMicro(at.O2).UTC()
	}
	text, ofRuns := scans[q.Newest][q.Index]
	if !ofRuns {
		text = scans[q.Newest][""]
		params["name"], params["key"] = stored(q.Index), at.Key
	}
	return spanner.Statement{SQL: text, Params: params}
}

func (e *entry) public() (one runstore.IndexEntry, err error) {
	one = runstore.IndexEntry{Run: runstore.RunID(e.Run), At: e.O1.UTC(), Cursor: e.place().encode()}
	if !e.Version.Valid {
		f := found{e.Head, e.Summary, e.SummaryValue}
		one.Head, err = f.run()
		return one, err
	}
	r := record{
		Key: e.Key, Version: e.Version, CreatedSeq: e.CreatedSeq, CreatedTime: e.CreatedTime,
		UpdatedSeq: e.UpdatedSeq, UpdatedTime: e.UpdatedTime, Value: e.Value,
	}
	one.Record = r.public()
	return one, nil
}

// cursor is where an entry stands in the order of its index.
type cursor struct {
	O1, O2, O3 int64
	Run, Key   []byte
}

func (e *entry) place() cursor {
	return cursor{e.O1.UnixMicro(), e.O2.UnixMicro(), e.O3, e.Run, stored(e.Key)}
}

func (c cursor) encode() runstore.Cursor {
	text, _ := json.Marshal(c) // numbers and bytes: it cannot fail
	return runstore.Cursor(base64.RawURLEncoding.EncodeToString(text))
}

// decodeCursor returns the place behind which a scan begins: before or after everything,
// where it names none.
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
	text, err := base64.RawURLEncoding.DecodeString(string(q.After))
	if err == nil {
		at = cursor{}
		strict := json.NewDecoder(bytes.NewReader(text))
		strict.DisallowUnknownFields()
		err = strict.Decode(&at)
	}
	if last := runstore.EndOfTime.UnixMicro(); err != nil || at.O1 < 0 || at.O1 > last || at.O2 < 0 || at.O2 > last || len(at.Run) == 0 {
		return at, badOption("after", "is not a cursor of this store")
	}
	at.Run, at.Key = append([]byte{}, at.Run...), append([]byte{}, at.Key...)
	return at, nil
}
