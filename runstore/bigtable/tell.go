package bigtable

import (
	"context"
	"errors"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// tellAll writes what the recent segments hold back to the rows of their runs, and then advances the
// hint. It returns the runs of the segments that are void: their rows are not told, and the log may
// lack their events.
func (q *sequencer) tellAll(ctx context.Context) (void []runstore.RunID, err error) {
	if void, err = q.review(ctx); err != nil || len(void) > 0 {
		return void, err
	}
	rows := map[string]mutation{}
	told := int64(0)
	for number, g := range q.recent {
		if g.appends == nil {
			g.propagate(rows)
			told = max(told, number)
		}
	}
	if err := q.store.writeAll(ctx, slices.Collect(maps.Values(rows))); err != nil {
		return nil, err
	}
	if told > 0 {
		if err := q.store.advanceHint(ctx, told); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(q.recent, func(_ int64, g *segment) bool { return g.appends == nil })
	return nil, nil
}

// review looks at the recent segments as they are now: it drops those that are void, whose runs it
// returns, and freezes the pages that are closed. It closes the page that ends the log if nothing was
// appended since the last review, or if a program of format 4 has gone on behind it. That is one read
// for many segments.
//
// A segment is void if it stands in a block which was compacted before it was created. A handle that
// was suspended creates such a segment: it takes its number for the end of the log, others have used
// the number since, and removed it. No reader finds the segment. The check needs no clock, which may
// stand still while a machine is suspended. A handle that dies before it has told no row, so the
// passes bring the events into the log again.
func (q *sequencer) review(ctx context.Context) (void []runstore.RunID, err error) {
	asked := map[int64]bool{}
	for number := range q.mine {
		if start := blockStart(number); start != number {
			asked[start] = true
		}
	}
	for number, g := range q.recent {
		if g.appends != nil {
			asked[number] = true
		}
	}
	if q.last != nil {
		asked[q.end+1] = true
	}
	when := q.store.present()
	found, err := q.store.log(ctx, slices.Collect(maps.Keys(asked))...)
	if err != nil {
		return nil, err
	}
	if void, err = q.dropVoid(ctx, when, found); err != nil || len(void) > 0 {
		return void, err
	}
	for _, number := range slices.Sorted(maps.Keys(q.recent)) {
		g := found[number]
		if q.recent[number].appends == nil {
			continue
		}
		if g == nil { // it is told and compacted
			delete(q.recent, number)
			continue
		}
		if g.isOpen() && (found[number+1] != nil || q.last != nil && q.seen == seen{number, g.entries}) {
			if g, err = q.store.closePage(ctx, g, number+1); err == nil && g == nil { // it was frozen meanwhile
				now, unread := q.store.log(ctx, number)
				g, err = now[number], unread
			}
			if err != nil || g == nil {
				return nil, err
			}
		}
		if g.appends != nil && !g.open {
			if g, err = q.store.freeze(ctx, g); err != nil {
				return nil, err
			}
		}
		if q.learn(g); number == q.end {
			q.meet(g)
		}
	}
	if q.last != nil {
		q.seen = seen{q.end, q.last.entries}
	}
	return nil, nil
}

// seen is a page as it was at a review.
type seen struct {
	number  int64
	entries int
}

// dropVoid deletes the void segments among those that this handle has created. found are the first
// segments of their blocks.
func (q *sequencer) dropVoid(ctx context.Context, when moment, found map[int64]*segment) (runs []runstore.RunID, err error) {
	var dead []string
	for number := range q.mine {
		if _, void := found[blockStart(number)].skips(number); void {
			dead = append(dead, logKey(number))
			if g := q.recent[number]; g != nil {
				for _, r := range g.Ranges {
					runs = append(runs, runstore.RunID(r.Run))
				}
			}
		}
	}
	if len(dead) == 0 {
		clear(q.mine)
		return nil, nil
	}
	if err := q.store.collect(ctx, when, dead); err != nil && !errors.Is(err, errRaised) {
		return nil, err
	}
	// What the handle knew of the log is wrong. If the epoch was raised, the segments stay.
	q.forget()
	return runs, nil
}

// columnTold is the column of the hint. Programs of format 4 have one in the column "", and advance it
// over pages that they take for complete segments.
const columnTold = "p"

// advanceHint records that all segments up to a number are told to their runs. The hint never
// goes back.
func (s *Store) advanceHint(ctx context.Context, told int64) error {
	m := bigtable.NewMutation()
	if told > 0 { // a range that ends at 0 has no end
		m.DeleteTimestampRange(familyOther, columnTold, 0, numbered(told))
	}
	m.Set(familyOther, columnTold, numbered(told), []byte(be64(told)))
	return s.writeAll(ctx, []mutation{{kindHint, m, 64}})
}

// hint returns the number up to which all segments are told to their runs.
func (s *Store) hint(ctx context.Context) (told int64, err error) {
	err = s.readList(ctx, []string{kindHint}, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		value := cell(r, familyOther, columnTold)
		if value == nil { // no page was created yet
			value = cell(r, familyOther, "")
		}
		if len(value) == 8 { // else the rounds begin with the first segment
			told = fromBE64(string(value))
		}
		return nil
	})
	return told, err
}
