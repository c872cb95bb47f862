package sqlite

import (
	"context"
	"database/sql/driver"
	"math"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan walks an index of SQLite in its own order from one bound to the other, so its cost depends
// on what it returns, however much is stored. The bound at which it begins is folded into the
// cursor that it begins after. The bound at which it ends is an argument: the upper bound, or the
// lower bound of a descending scan. Each query selects the columns of the order first, then those
// of the entry.
const (
	scanPlaces = `SELECT p.at, p.written, p.run, p.key, runs.id, ` + recordColumns + `
		FROM places p CROSS JOIN runs ON runs.no = p.run CROSS JOIN records ON records.run = p.run AND records.key = p.key` + ofPlaces
	ofPlaces = `
		WHERE p.name = ? AND p.at <= ? AND (p.at, p.written, p.run, p.key) > (?, ?, ?, ?)
		ORDER BY p.at, p.written, p.run, p.key LIMIT ?`
	scanRuns = `SELECT runs.created, 0, runs.no, x'', runs.id, ` + headColumns + `, ` + recordColumns + `
		FROM runs INDEXED BY runs_created` + withSummary + `
		WHERE runs.purged = 0 AND runs.unlisted = 0 AND runs.created <= ? AND (runs.created, runs.no) > (?, ?)
		ORDER BY runs.created, runs.no LIMIT ?`
	// It has no limit, because its reader skips runs whose leases were renewed.
	scanRunnable = `SELECT runs.place, runs.created, runs.no, x'', runs.id, ` + headColumns + `, ` + recordColumns + `
		FROM runs INDEXED BY runs_runnable` + withSummary + `
		WHERE runs.place IS NOT NULL AND runs.place <= ? AND (runs.place, runs.created, runs.no) > (?, ?, ?)
		ORDER BY runs.place, runs.created, runs.no LIMIT -1`
)

// scanHeads is scanPlaces with the head and the summary of each run, in the form that scanRun
// reads, followed by the record.
var scanHeads = `SELECT p.at, p.written, p.run, p.key, runs.id, ` + headColumns + `, ` + recordColumns + `, ` +
	strings.ReplaceAll(recordColumns, "records.", "placed.") + `
	FROM places p CROSS JOIN runs ON runs.no = p.run CROSS JOIN records placed ON placed.run = p.run AND placed.key = p.key` +
	withSummary + ofPlaces

// backwards returns the descending form of a scan.
func backwards(query string) string {
	head, order, _ := strings.Cut(query, "ORDER BY ")
	order, limit, _ := strings.Cut(order, " LIMIT")
	head = strings.NewReplacer(") > (", ") < (", " <= ?", " >= ?").Replace(head)
	return head + "ORDER BY " + strings.ReplaceAll(order, ",", " DESC,") + " DESC LIMIT" + limit
}

// scan is a statement in both directions, ascending and descending.
type scan struct{ oldest, newest string }

var (
	runsScan     = scan{scanRuns, backwards(scanRuns)}
	runnableScan = scan{scanRunnable, backwards(scanRunnable)}
	placesScan   = scan{scanPlaces, backwards(scanPlaces)}
	headsScan    = scan{scanHeads, backwards(scanHeads)}
)

// ScanIndex implements adapter.Core.
func (e *engine) ScanIndex(ctx context.Context, q runstore.IndexQuery) (found []runstore.IndexEntry, err error) {
	after, err := decodeCursor(q)
	if err != nil {
		return nil, err
	}
	if _, behind := e.clock.now(); behind && q.Until.IsZero() {
		// Setting the clock is a write, which a handle that only scans would never make.
		if _, err := e.Now(ctx); err != nil {
			return nil, err
		}
	}
	var renewed []int64 // runs that are due by their entry but covered by a renewed lease
	err = e.read(ctx, func(c *conn) error {
		until := q.Until
		if until.IsZero() {
			until, _ = e.clock.now()
		}
		due, limit := until.UnixMicro(), int64(q.Limit)
		after, end := after.within(q, due)
		var statement scan
		var args []driver.Value
		ofRuns := true
		switch q.Index {
		case runstore.IndexRuns:
			statement, args = runsScan, []driver.Value{end, after.At, after.Run, limit}
		case runstore.IndexRunnable:
			statement, args = runnableScan, []driver.Value{end, after.At, after.Written, after.Run}
		default:
			statement, ofRuns = placesScan, false
			if q.Heads {
				statement = headsScan
			}
			args = []driver.Value{blob(q.Index), end, after.At, after.Written, after.Run, data(after.Key), limit}
		}
		query := statement.oldest
		if q.Newest {
			query = statement.newest
		}
		p := adapter.NewPage(q.Limit)
		return c.query(ctx, query, func(v []driver.Value) error {
			at := cursor{At: v[0].(int64), Written: v[1].(int64), Run: v[2].(int64), Key: bytesOf(v[3])}
			e := runstore.IndexEntry{Run: runstore.RunID(bytesOf(v[4])), At: runstore.FromMicros(at.At), Cursor: adapter.EncodeCursor(at)}
			v = v[5:]
			if ofRuns || q.Heads {
				e.Head = scanRun(v)
				v = v[headWidth+recordWidth:]
			}
			if q.Index == runstore.IndexRunnable && e.Head.Holder.ExpiresAt.After(until) {
				renewed = append(renewed, at.Run)
				return nil
			}
			if !ofRuns {
				e.Record = scanRecord(v)
			}
			found = append(found, e)
			return enough(p.Add(len(e.Record.Value) + len(e.Head.Summary.Value)))
		}, args...)
	})
	e.moveBehindLeases(renewed)
	return found, err
}

// cursor is a position in an index: the columns of its order.
type cursor struct {
	At, Written, Run int64
	Key              []byte
}

// within returns the cursor after which a scan begins inside its bounds, and the bound at which it
// ends. due is the upper bound.
func (c cursor) within(q runstore.IndexQuery, due int64) (start cursor, end int64) {
	from := runstore.Micros(q.From) // 0: before every entry
	if q.Newest {
		if c.At > due {
			c = cursor{At: due, Written: math.MaxInt64, Run: math.MaxInt64}
		}
		return c, from
	}
	if c.At < from {
		c = cursor{At: from, Written: math.MinInt64}
	}
	return c, due
}

// decodeCursor returns the cursor after which a scan begins. Without one the scan begins at the
// first entry, or at the last for a descending scan.
func decodeCursor(q runstore.IndexQuery) (at cursor, err error) {
	if q.After == "" {
		if q.Newest {
			return cursor{At: math.MaxInt64, Written: math.MaxInt64, Run: math.MaxInt64}, nil
		}
		return cursor{At: math.MinInt64}, nil
	}
	err = adapter.DecodeCursor(q.After, &at)
	return at, err
}
