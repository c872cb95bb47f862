package matcher

import (
	"context"
	"log/slog"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
)

// Backlog is the work that a live reaction has left to do.
type Backlog struct {
	Reaction tape.Reaction
	// Entries counts the entries of the feed that the reaction has to handle and that are after the
	// cursors of their shards. Runs counts the runs that its cursors name and that may not be begun.
	Entries, Runs int
}

// Backlogs returns the backlogs of the live reactions, in the order of their creation, with every entry
// that was committed before the call. It changes nothing. It waits for the feed as [tape.Tape.FeedEnd]
// does, and calls waiting likewise. Then it reads the cursors, and the feed from the lowest cursor. A
// cursor stays behind while the feed has nothing for its shard, so the feed is read even if nothing is left
// to do.
//
// Errors: runstore.ErrStoreBehind if a cursor is after the end of the feed; those of tape.Tape.FeedEnd.
func Backlogs(ctx context.Context, t *tape.Tape, waiting func(runs int)) ([]Backlog, error) {
	none := true
	for _, err := range t.Reactions(ctx) {
		if err != nil {
			return nil, err
		}
		none = false
		break
	}
	if none {
		return nil, nil
	}
	if _, err := t.FeedEnd(ctx, waiting); err != nil {
		return nil, err
	}
	type reader struct {
		*rule
		cursors []tape.Cursor
	}
	var all []Backlog
	var readers []reader
	var predicates predicate.Cache
	from, last := runstore.MaxPosition, runstore.Position(0)
	for r, err := range t.Reactions(ctx) {
		if err != nil {
			return nil, err
		}
		cursors, err := t.Cursors(ctx, r)
		if err != nil {
			return nil, err
		}
		left := Backlog{Reaction: r}
		for _, at := range cursors {
			from, last = min(from, at.Position), max(last, at.Position)
			left.Runs += at.PendingRuns()
		}
		all = append(all, left)
		readers = append(readers, reader{compile(r, &predicates, slog.New(slog.DiscardHandler)), cursors})
	}
	if len(all) > 0 { // is the highest cursor in the feed?
		if _, err := t.Store().ReadFeed(ctx, runstore.FeedQuery{After: last, Limit: 1}); err != nil {
			return nil, err
		}
	}
	for len(all) > 0 {
		page, err := t.Store().ReadFeed(ctx, runstore.FeedQuery{After: from, Limit: runstore.MaxPage})
		if err != nil || len(page) == 0 {
			return all, err
		}
		for _, e := range page {
			from = e.Position
			in, ok := inputOf(tail.FeedEvent{FeedEvent: e})
			if !ok {
				continue
			}
			for i, r := range readers {
				if e.Position > r.cursors[r.ShardOf(in.Entry.Run)].Position && r.matches(in) {
					all[i].Entries++
				}
			}
		}
	}
	return all, nil
}
