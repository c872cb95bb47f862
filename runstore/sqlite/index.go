package sqlite

import (
	"context"
	"database/sql/driver"
	"math"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// A scan walks an index of SQLite in its own order from one bound to the other, so its cost depends
// on what it returns, however much is stored. The bound at which it begins is folded into the
// cursor that it begins after. The bound at which it ends is an argument: the upper bound, or the
// lower bound of a descending scan. Each query selects the columns of the order first, then those
// of the entry.

// scan is a statement in both directions, ascending and descending.
type scan struct{ oldest, newest string }

var (
	runsScan     = newScan("runs_page")
	runnableScan = newScan("runnable_page")
	placesScan   = newScan("index_page")
	headsScan    = newScan("index_page", "heads")
)

func newScan(name string, parts ...string) scan {
	return scan{sqlFiles.Statement(name, parts...), sqlFiles.Statement(name, append(parts, "newest")...)}
}

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
	from := adapter.FirstMicros(q.From) // 0: before every entry
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
