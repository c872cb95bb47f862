package spanner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan is one statement; see sql/index_page.sql. It reads only the range of the index between its
// bounds. Forwards, the lower bound is part of the cursor (@o1); backwards, it is @from.

// scanKind selects the statement of a scan.
type scanKind struct {
	index  runstore.IndexName // of runs, or empty: an index of records
	newest bool
	heads  bool // with an index of records; those of runs always have them
}

// scans has the statement of each kind of scan.
var scans = map[scanKind]string{
	{}:                          sqlFiles.Statement("index_page"),
	{newest: true}:              sqlFiles.Statement("index_page", "newest"),
	{heads: true}:               sqlFiles.Statement("index_page", "heads"),
	{heads: true, newest: true}: sqlFiles.Statement("index_page", "heads", "newest"),

	{index: runstore.IndexRuns}:                   sqlFiles.Statement("runs_page"),
	{index: runstore.IndexRuns, newest: true}:     sqlFiles.Statement("runs_page", "newest"),
	{index: runstore.IndexRunnable}:               sqlFiles.Statement("runnable_page"),
	{index: runstore.IndexRunnable, newest: true}: sqlFiles.Statement("runnable_page", "newest"),
}

// entry is a row of a scan.
type entry struct {
	O1, O2 time.Time
	O3     int64
	Run    []byte
	Purged spanner.NullBool // in an index of records: the run is being purged
	Held   spanner.NullBool // in the index of runnable runs: the lease is live at the scan's upper bound
	record record           // in an index of records
	head   runRow           // in an index of runs, and if the query asks for heads
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
		err := s.rows(ctx, bound, s.sql("scan", scanOf(q, at, limit)), begin, func(row *spanner.Row) (bool, error) {
			last = entry{}
			if err := errors.Join(row.ToStructLenient(&last), row.ToStructLenient(&last.record), row.ToStructLenient(&last.head)); err != nil {
				return false, err
			}
			rows++
			if last.Purged.Bool {
				return true, nil
			}
			if last.Held.Bool { // renewed since the entry was written
				stale = append(stale, seenGrant{last.O3, last.Run, last.head.Head[0].Token, last.head.Head[0].GrantID})
				return true, nil
			}
			one := last.public()
			entries = append(entries, one)
			return !p.Add(len(one.Record.Value) + len(one.Head.Summary.Value)), nil
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
		params["from"] = time.UnixMicro(adapter.FirstMicros(q.From)).UTC()
	}
	text, ofRuns := scans[scanKind{index: q.Index, newest: q.Newest}]
	if !ofRuns {
		text = scans[scanKind{newest: q.Newest, heads: q.Heads}]
		params["name"], params["key"] = stored(q.Index), at.Key
	}
	return spanner.Statement{SQL: text, Params: params}
}

// public returns the entry as callers see it.
func (e *entry) public() (one runstore.IndexEntry) {
	one = runstore.IndexEntry{Run: runstore.RunID(e.Run), At: e.O1.UTC(), Cursor: adapter.EncodeCursor(e.cursor())}
	if len(e.head.Head) > 0 {
		one.Head = e.head.run()
	}
	if e.record.Version.Valid {
		one.Record = e.record.public()
	}
	return one
}

// cursor is the sort key of an entry in its index.
type cursor struct {
	O1, O2, O3 int64
	Run, Key   []byte
}

func (e *entry) cursor() cursor {
	return cursor{e.O1.UnixMicro(), e.O2.UnixMicro(), e.O3, e.Run, stored(e.record.Key)}
}

// from returns the cursor that a scan starts behind: c, or for a forward scan with a later lower
// bound the cursor before all entries of that time.
func (c cursor) from(q runstore.IndexQuery) cursor {
	if bound := adapter.FirstMicros(q.From); !q.Newest && c.O1 < bound {
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
		at.Run = bytes.Repeat([]byte{0xff}, runstore.MaxRunID+1)
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
