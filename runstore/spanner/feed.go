package spanner

import (
	"context"
	"strconv"
	"strings"

	"cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// The statement of a page of the feed: the next places of every shard, each read in the
// order of its key, of these the first, and only then what stands there. It begins with
// the place that the reader stands on, which shows that the store knows it.
var selectFeed = `SELECT f.Run, f.Seq, f.Committed, f.Slot, f.Time, f.Token, f.Kind, f.Owner, f.Data, q.Purged
FROM (
` + perShard(`SELECT q.Shard, q.Committed, q.Slot, q.Run
	FROM Feed AS q
	WHERE q.Shard = one_shard AND q.Committed >= @committed AND (q.Committed > @committed OR q.Slot >= @slot)
	ORDER BY q.Committed, q.Slot LIMIT @limit`, `q.Committed, q.Slot`) + `
) AS q
JOIN Feed AS f ON f.Shard = q.Shard AND f.Committed = q.Committed AND f.Slot = q.Slot
ORDER BY f.Committed, f.Slot`

// selectLast finds the last entry of a time before now: Spanner may read all of that, so
// it is short at first. Only who is told that it is ahead waits for it.
var selectLast = perShard(`SELECT q.Run, q.Committed, q.Slot FROM Feed AS q 
	WHERE q.Shard = one_shard AND q.Committed >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL @seconds SECOND)
	ORDER BY q.Committed DESC, q.Slot DESC LIMIT @limit`,
	`q.Committed DESC, q.Slot DESC`)

// perShard makes one statement of the same for each shard, which reads keys only: most of
// what the shards yield is not on the page. It marks the rows of runs that are being
// purged. They are few, and left out by the reader, so that a page of nothing else is not
// taken for the end.
func perShard(text, order string) string {
	return "SELECT q.*, p.Run IS NOT NULL AS Purged FROM (\nSELECT q.* FROM UNNEST(GENERATE_ARRAY(0, " + strconv.Itoa(shards-1) + ")) AS one_shard,\nUNNEST(ARRAY(" +
		strings.Replace(text, "SELECT", "SELECT AS STRUCT", 1) + ")) AS q\nORDER BY " + order + " LIMIT @limit\n) AS q\nLEFT JOIN (" + purging + ") AS p ON p.Run = q.Run\nORDER BY " + order
}

// ReadFeed implements runstore.RunStore.
func (s *Store) ReadFeed(ctx context.Context, q runstore.FeedQuery) (events []runstore.FeedEvent, err error) {
	err = s.op(ctx, "read feed", "", q.Check(), func(ctx context.Context) error {
		after, limit := q.After, q.Limit
		for from := after; ; {
			committed, slot := placeOf(from)
			stmt := spanner.Statement{SQL: selectFeed, Params: map[string]any{"committed": committed, "slot": slot, "limit": int64(limit) + 1}}
			var last runstore.Position
			rows, p := 0, page{}
			err := s.each(ctx, "feed", stmt, func() { events, last, rows, p = nil, 0, 0, page{left: limit} }, func(row *spanner.Row) (bool, error) {
				var e event
				if err := row.ToStructLenient(&e); err != nil {
					return false, err
				}
				one := e.public()
				last = one.Position
				rows++
				if !e.Seq.Valid || e.Purged.Bool || one.Position <= after {
					return true, nil
				}
				events = append(events, runstore.FeedEvent{Run: runstore.RunID(e.Run), Event: one})
				return p.more(len(e.Data)), nil
			})
			switch {
			case err != nil || len(events) > 0:
				return err
			case rows == 0 && from == after && after > 0:
				return s.behind(ctx, after)
			case rows <= limit:
				return nil
			}
			from = last + 1 // a page of places without events
		}
	})
	return events, err
}

// behind is told to a reader that stands where nothing is, and nothing comes after: it
// has seen what the store does not know.
func (s *Store) behind(ctx context.Context, after runstore.Position) error {
	known := runstore.Position(0)
	for _, seconds := range []int64{60, 3600, 24 * 3600, 30 * 24 * 3600, 50 * 365 * 24 * 3600} {
		stmt := spanner.Statement{SQL: selectLast, Params: map[string]any{"limit": int64(1), "seconds": seconds}}
		err := s.each(ctx, "feed-end", stmt, func() {}, func(row *spanner.Row) (bool, error) {
			var e event
			err := row.ToStructLenient(&e)
			known = e.public().Position
			return true, err
		})
		if err != nil || known >= after { // it was written meanwhile
			return err
		}
		if known > 0 {
			break
		}
	}
	return &runstore.StoreBehindError{Field: "position", Presented: int64(after), Known: int64(known)}
}
