package spanner

import (
	"context"
	"errors"

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
		var tx *spanner.ReadOnlyTransaction
		read := func(ctx context.Context, single *spanner.ReadOnlyTransaction) *spanner.RowIterator {
			tx = single
			return s.feedRows(window, asked)(ctx, tx)
		}
		var last runstore.Position
		var rows int64
		var count ranks
		var p adapter.Page
		stands, full, shared, early := false, false, false, false
		begin := func() {
			events, last, rows, count, p = nil, 0, 0, ranks{windows: s.windows}, adapter.NewPage(limit)
			stands, full, shared, early = false, false, false, false
		}
		err := s.rows(ctx, spanner.StrongRead(), read, begin, func(row *spanner.Row) (bool, error) {
			var e event
			readAt, err := tx.Timestamp()
			if err := errors.Join(err, row.ToStructLenient(&e)); err != nil {
				return false, err
			}
			open := s.windows.of(readAt) // further events may be committed in this window
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
		from, most = s.gaps.skip(last), min(most, maxFeedRows/4)
	}
}

// feedRows reads the first rows of the feed from the beginning of a window.
func (s *engine) feedRows(window, limit int64) reader {
	return s.sql("feed", spanner.Statement{SQL: sqlFeedPage, Params: map[string]any{"committed": s.windows.begin(window), "limit": limit}})
}

// lookBack lists the time ranges, in seconds, in which the end of the feed is looked for, one after
// the other: a minute, an hour, a day, 30 days, and 50 years, the store's whole life.
var lookBack = []int64{60, 3600, 24 * 3600, 30 * 24 * 3600, 50 * 365 * 24 * 3600}

// feedEnd returns the last rows of the feed before a window, the last one first: of those that were
// committed in the last seconds, up to limit.
func (s *engine) feedEnd(ctx context.Context, before, seconds, limit int64) ([]event, error) {
	params := map[string]any{"before": s.windows.begin(before), "seconds": seconds, "limit": limit}
	return selectAll[event](ctx, s, s.sql("feed-end", spanner.Statement{SQL: sqlFeedNewest, Params: params}))
}

// endOfFeed is a window behind all windows of the feed.
func (s *engine) endOfFeed() int64 { return s.windows.of(runstore.EndOfTime) }

// newestWindows returns the windows of the first and the last of the newest events, up to limit of
// them, or -1 if there are none. It reads the rows of the feed backwards. A page may end within a
// window, so the next page begins with that window again. Pages without events become gaps, so that
// later calls do not read the rows of a large purge again.
func (s *engine) newestWindows(ctx context.Context, limit int64) (from, to int64, err error) {
	from, to = -1, -1
	found, before := int64(0), s.endOfFeed() // found counts the events in the windows from before on
	open := before                           // the window of the first row read: events may be committed in it after that read
	for _, seconds := range lookBack {
		for most := limit; ; {
			before = s.gaps.skipBack(before)
			rows, err := s.feedEnd(ctx, before, seconds, most)
			if err != nil {
				return -1, -1, err
			}
			if len(rows) == 0 {
				break
			}
			first, last := s.windows.of(rows[0].Committed.Time), s.windows.of(rows[len(rows)-1].Committed.Time)
			inPage, complete := int64(0), int64(0) // the page has all rows of the windows behind its last one
			for _, e := range rows {
				if !e.Seq.Valid || e.Purged.Bool {
					continue
				}
				from = s.windows.of(e.Committed.Time)
				to = max(to, from)
				if inPage++; found+inPage == limit {
					return from, to, nil
				}
				if from > last {
					complete++
				}
			}
			if open == s.endOfFeed() {
				open = first
			}
			if inPage == 0 {
				s.gaps.add(position(last+1, 0), position(min(before, open), 0))
			}
			found, before = found+complete, last+1
			if int64(len(rows)) < most {
				break
			}
			if most *= 4; first > last { // a larger page is only needed within one window
				most = min(most, maxFeedRows)
			}
		}
	}
	return from, to, nil
}

// newest reads the end of the feed. It finds the windows of the first and the last of the newest
// events, then reads pages from the first window until behind the last. Events that are committed
// meanwhile in later windows end the read, so it ends even under fast writers.
func (s *engine) newest(ctx context.Context, limit int) (events []runstore.FeedEvent, err error) {
	from, to, err := s.newestWindows(ctx, int64(limit))
	if err != nil || from < 0 {
		return nil, err
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
		end, err := s.feedEnd(ctx, s.endOfFeed(), seconds, 1)
		if err != nil {
			return err
		}
		if len(end) == 0 {
			continue
		}
		var count ranks
		read := s.feedRows(s.windows.of(end[0].Committed.Time), s.windows.maxRank)
		err = s.rows(ctx, spanner.StrongRead(), read, func() { count = ranks{windows: s.windows} }, func(row *spanner.Row) (bool, error) {
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
