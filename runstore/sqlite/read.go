package sqlite

import (
	"context"
	"database/sql/driver"
	"slices"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// recordWidth is the number of columns that scanRecord reads.
const recordWidth = 9

func scanRecord(v []driver.Value) runstore.Record {
	if v[1] == nil {
		return runstore.Record{}
	}
	return runstore.Record{
		Key: runstore.RecordKey(bytesOf(v[0])), Version: runstore.Version(v[1].(int64)), Value: bytesOf(v[2]),
		Created: runstore.Stamp{Seq: runstore.Seq(v[3].(int64)), Time: runstore.FromMicros(v[4].(int64)), Token: runstore.Token(v[7].(int64))},
		Updated: runstore.Stamp{Seq: runstore.Seq(v[5].(int64)), Time: runstore.FromMicros(v[6].(int64)), Token: runstore.Token(v[8].(int64))},
	}
}

func scanRun(v []driver.Value) runstore.Run {
	run := scanHead(v).Run
	run.Summary = scanRecord(v[headWidth:])
	return run
}

func readRun(ctx context.Context, c *conn, id runstore.RunID) (runstore.Run, error) {
	v, err := c.one(ctx, sqlRunRead, blob(id))
	if err != nil {
		return runstore.Run{}, err
	}
	if v == nil {
		return runstore.Run{}, runstore.ErrNotFound
	}
	return scanRun(v), nil
}

// GetRun implements adapter.Core.
func (e *engine) GetRun(ctx context.Context, id runstore.RunID) (run runstore.Run, err error) {
	err = e.read(ctx, func(c *conn) error {
		run, err = readRun(ctx, c, id)
		return err
	})
	return run, err
}

// ReadTerms implements runstore.TermReader.
func (e *engine) ReadTerms(ctx context.Context, id runstore.RunID) (terms []runstore.Term, err error) {
	err = e.read(ctx, func(c *conn) error {
		v, err := c.one(ctx, sqlTermsRead, blob(id))
		switch {
		case err != nil:
			return err
		case v == nil:
			return runstore.ErrNotFound
		}
		r := scanHead(v)
		r.Terms = bytesOf(v[headWidth])
		terms, err = r.ListTerms()
		return err
	})
	return terms, err
}

// ReadRecords implements adapter.Core.
func (e *engine) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	err = e.read(ctx, func(c *conn) error {
		run, err := c.one(ctx, sqlAppendLookUp, blob(id))
		if err != nil {
			return err
		}
		if run == nil {
			return runstore.ErrNotFound
		}
		collect := func(v []driver.Value) error {
			records = append(records, scanRecord(v))
			return nil
		}
		for _, key := range slices.Compact(slices.Sorted(slices.Values(q.Keys))) {
			if err := c.query(ctx, sqlRecordsByKey, collect, run[0], blob(key)); err != nil {
				return err
			}
		}
		if len(q.Keys) > 0 {
			return nil
		}
		p := adapter.NewPage(q.Limit)
		from, end := adapter.KeyBounds(q)
		return c.query(ctx, sqlRecordsPage, func(v []driver.Value) error {
			r := scanRecord(v)
			records = append(records, r)
			return enough(p.Add(len(r.Value)))
		}, run[0], data(from), end, int64(q.Limit))
	})
	return records, err
}

// ReadFeed implements adapter.Core.
func (e *engine) ReadFeed(ctx context.Context, q runstore.FeedQuery) (events []runstore.FeedEvent, err error) {
	err = e.read(ctx, func(c *conn) error {
		last, err := c.one(ctx, sqlFeedLastPosition)
		if err != nil {
			return err
		}
		known := last[0].(int64)
		if int64(q.After) > known {
			return &runstore.StoreBehindError{Field: "position", Presented: int64(q.After), Known: known}
		}
		p, decoder := adapter.NewPage(q.Limit), eventDecoder{}
		events = make([]runstore.FeedEvent, 0, min(int64(q.Limit), known-int64(q.After)))
		statement, args := sqlFeedPage, []driver.Value{int64(q.After)}
		if q.Newest {
			statement, args = sqlFeedPageNewest, nil
			defer func() { slices.Reverse(events) }()
		}
		return c.query(ctx, statement, func(v []driver.Value) error {
			if v[0] == nil {
				return nil // the run was purged
			}
			e, err := decoder.decode(bytesOf(v[0]))
			if err != nil {
				return err
			}
			events = append(events, e)
			return enough(p.Add(len(e.Data)))
		}, args...)
	})
	return events, err
}
