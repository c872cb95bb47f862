package postgres

import (
	"context"
	"math"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan walks an index in its own order, so its cost depends on the page and not on the size of
// the store. Each query selects the columns of the order first, then those of the entry.
//
// A forward scan starts after its cursor, which is at or after the query's lower bound. A backward
// scan starts before its cursor and ends at the lower bound.
//
// The tables call an index entry a place: the table places has the entries of records, and the
// column place of runs is the run's key in the index of runnable runs.

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
	ofRuns:             {sqlRunsPage, sqlRunsPageNewest},
	ofRunnable:         {sqlRunnablePage, sqlRunnablePageNewest},
	ofEntries:          {sqlIndexPage, sqlIndexPageNewest},
	ofEntriesWithHeads: {sqlIndexPageHeads, sqlIndexPageHeadsNewest},
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
			e.moveBehindLeases(*due, q.Until)
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
	return cursor{At: adapter.FirstMicros(q.From)}
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
