package bigtable

import (
	"context"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// tellAll writes what the recent segments hold back to the rows of their runs, and then advances the
// hint. It returns the runs of the segments that are void: their rows are not told, and the log may
// lack their events.
func (q *sequencer) tellAll(ctx context.Context) (void []runstore.RunID, err error) {
	if len(q.recent) == 0 {
		return nil, nil
	}
	if void, err = q.dropVoid(ctx); err != nil || len(void) > 0 {
		return void, err
	}
	rows := map[string]mutation{}
	for _, g := range q.recent {
		g.propagate(rows)
	}
	if err := q.store.writeAll(ctx, slices.Collect(maps.Values(rows))); err != nil {
		return nil, err
	}
	if err := q.store.advanceHint(ctx, slices.Max(slices.Collect(maps.Keys(q.recent)))); err != nil {
		return nil, err
	}
	clear(q.recent)
	return nil, nil
}

// dropVoid deletes the recent segments that stand in a block which was compacted before they were
// created, and returns their runs. A handle that was suspended creates such a segment: it takes its
// number for the end of the log, others have used the number since, and removed it. No reader finds
// the segment. The check costs one read for many segments, and needs no clock, which may stand still
// while a machine is suspended. A handle that dies before it has told no row, so the passes bring
// the events into the log again.
func (q *sequencer) dropVoid(ctx context.Context) (runs []runstore.RunID, err error) {
	starts := map[int64]bool{}
	for number := range q.recent {
		if start := blockStart(number); start != number {
			starts[start] = true
		}
	}
	found, err := q.store.log(ctx, slices.Collect(maps.Keys(starts))...)
	if err != nil {
		return nil, err
	}
	var dead []mutation
	for number, g := range q.recent {
		if _, void := found[blockStart(number)].skips(number); void {
			dead = append(dead, remove(logKey(number)))
			for _, r := range g.Ranges {
				runs = append(runs, runstore.RunID(r.Run))
			}
		}
	}
	if len(dead) == 0 {
		return nil, nil
	}
	if err := q.store.writeAll(ctx, dead); err != nil {
		return nil, err
	}
	// What the handle knew of the log is wrong.
	q.end = 0
	clear(q.recent)
	clear(q.fed)
	return runs, nil
}

// advanceHint records that all segments up to a number are told to their runs. The hint never
// goes back.
func (s *Store) advanceHint(ctx context.Context, told int64) error {
	m := bigtable.NewMutation()
	m.Set(familyOther, "", numbered(told), []byte(be64(told)))
	return s.writeAll(ctx, []mutation{{kindHint, m, 64}})
}

// hint returns the number up to which all segments are told to their runs.
func (s *Store) hint(ctx context.Context) (told int64, err error) {
	err = s.readList(ctx, []string{kindHint}, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		if value := cell(r, familyOther, ""); len(value) == 8 { // else the rounds begin with the first segment
			told = fromBE64(string(value))
		}
		return nil
	})
	return told, err
}
