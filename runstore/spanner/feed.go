package spanner

import (
	"context"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// ReadFeed implements adapter.Core. An event is readable as soon as it is committed, unless its
// window has used up its ranks (see position.go).
func (s *engine) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if q.Newest {
		return s.newest(ctx, q.Limit)
	}
	events, _, err := s.feedPage(ctx, q.After, q.Limit)
	return events, err
}

// maxFeedRows (10,000) bounds the rows of one request that skips rows without events.
const maxFeedRows = 10_000

// feedPage reads a page of events behind a position. end reports that no row followed the page at
// the time of the read.
func (s *engine) feedPage(ctx context.Context, after runstore.Position, limit int) (events []runstore.FeedEvent, end bool, err error) {
	for from, most := s.gaps.skip(after), int64(limit)+1; ; most *= 4 {
		window, rank := split(from)
		asked := rank + most
		stmt := spanner.Statement{SQL: sqlFeedPage, Params: map[string]any{"committed": s.windows.begin(window), "limit": asked}}
		var last runstore.Position
		var rows int64
		var count ranks
		var p adapter.Page
		stands, full, shared, early := false, false, false, false
		begin := func() {
			events, last, rows, count, p = nil, 0, 0, ranks{windows: s.windows}, adapter.NewPage(limit)
			stands, full, shared, early = false, false, false, false
		}
		err := s.eachWindow(ctx, "feed", stmt, begin, func(row *spanner.Row, open int64) (bool, error) {
			var e event
			if err := row.ToStructLenient(&e); err != nil {
				return false, err
			}
			rows++
			at := count.next(e.Committed)
			stands = stands || at >= after
			if early = count.atLastRank() && count.window >= open; early || full && at > last {
				return false, nil
			}
			last = at
			if at > after && e.Seq.Valid && !e.Purged.Bool {
				one := runstore.FeedEvent{Run: runstore.RunID(e.Run), Event: e.public()}
				one.Position = at
				events = append(events, one)
				full = p.Add(len(e.Data)) || full
			}
			shared = count.atLastRank()
			return !full || shared, nil
		})
		switch {
		case err == nil && rows == asked && shared:
			continue // further rows may share the last rank
		case err != nil || len(events) > 0:
			return events, early || rows < asked && !full, err
		case !stands && after > 0:
			return nil, true, s.storeBehind(ctx, after)
		case last <= from:
			return nil, true, nil
		}
		s.gaps.add(from, last) // a page of rows without events
		if rows < asked {
			return nil, true, nil
		}
		from, most = last, min(most, maxFeedRows/4)
	}
}

// eachWindow is each for a page of the feed. It passes to use the first window that was still open
// at the read timestamp: further events may be committed in it.
func (s *engine) eachWindow(ctx context.Context, tag string, stmt spanner.Statement, begin func(), use func(row *spanner.Row, open int64) (more bool, err error)) error {
	var tx *spanner.ReadOnlyTransaction
	return s.rows(ctx, spanner.StrongRead(), func(ctx context.Context, single *spanner.ReadOnlyTransaction) *spanner.RowIterator {
		tx = single
		return tx.QueryWithOptions(ctx, stmt, s.query(tag))
	}, begin, func(row *spanner.Row) (bool, error) {
		at, err := tx.Timestamp()
		if err != nil {
			return false, err
		}
		return use(row, s.windows.of(at))
	})
}

// lookBack lists the time ranges, in seconds, in which the end of the feed is looked for, one after
// the other: a minute, an hour, a day, 30 days, and 50 years, the store's whole life.
var lookBack = []int64{60, 3600, 24 * 3600, 30 * 24 * 3600, 50 * 365 * 24 * 3600}

// newest reads the end of the feed. It finds the windows of the first and the last of the newest
// events, then reads pages from the first window until behind the last. Events that are committed
// meanwhile in later windows end the read, so it ends even under fast writers.
func (s *engine) newest(ctx context.Context, limit int) (events []runstore.FeedEvent, err error) {
	from, to := int64(-1), int64(-1)
	enough := false
	for _, seconds := range lookBack {
		for most := int64(limit); ; most *= 4 {
			var rows int64
			found := 0
			stmt := spanner.Statement{SQL: sqlFeedEnd, Params: map[string]any{"limit": most, "seconds": seconds}}
			err := s.each(ctx, "feed-end", stmt, func() { rows, found, from = 0, 0, -1 }, func(row *spanner.Row) (bool, error) {
				var e event
				err := row.ToStructLenient(&e)
				rows++
				if e.Seq.Valid && !e.Purged.Bool {
					found++
					from = s.windows.of(e.Committed.Time)
					to = max(to, from)
				}
				return found < limit, err
			})
			if err != nil {
				return nil, err
			}
			if enough = found >= limit; enough || rows < most {
				break
			}
		}
		if enough {
			break
		}
	}
	if from < 0 {
		return nil, nil
	}
	size := 0
	for after := position(from, 0); ; after = events[len(events)-1].Position {
		more, end, err := s.feedPage(ctx, after, runstore.MaxPage)
		if err != nil {
			return nil, err
		}
		events = append(events, more...)
		for _, e := range more {
			size += len(e.Data)
		}
		for len(events) > limit || len(events) > 1 && size-len(events[0].Data) > runstore.MaxPageBytes {
			size -= len(events[0].Data)
			events = events[1:]
		}
		if end || len(events) == 0 {
			return events, nil
		}
		if window, _ := split(events[len(events)-1].Position); window > to {
			return events, nil
		}
	}
}

// storeBehind returns ErrStoreBehind for a reader whose position is beyond the last row of the
// feed: that reader has seen events that this store does not have. It returns nil if such a row was
// committed since the caller looked.
func (s *engine) storeBehind(ctx context.Context, after runstore.Position) error {
	known := runstore.Position(0)
	for _, seconds := range lookBack {
		var last spanner.NullTime
		stmt := spanner.Statement{SQL: sqlFeedEnd, Params: map[string]any{"limit": int64(1), "seconds": seconds}}
		err := s.each(ctx, "feed-end", stmt, func() {}, func(row *spanner.Row) (bool, error) {
			var e event
			err := row.ToStructLenient(&e)
			last = e.Committed
			return true, err
		})
		if err != nil {
			return err
		}
		if !last.Valid {
			continue
		}
		var count ranks
		stmt = spanner.Statement{SQL: sqlFeedPage, Params: map[string]any{"committed": s.windows.begin(s.windows.of(last.Time)), "limit": s.windows.maxRank}}
		err = s.each(ctx, "feed", stmt, func() { count = ranks{windows: s.windows} }, func(row *spanner.Row) (bool, error) {
			var e event
			err := row.ToStructLenient(&e)
			known = count.next(e.Committed)
			return true, err
		})
		if err != nil || known >= after { // the row was written meanwhile
			return err
		}
		break
	}
	return &runstore.StoreBehindError{Field: "position", Presented: int64(after), Known: int64(known)}
}
