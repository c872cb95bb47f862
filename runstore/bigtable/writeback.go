package bigtable

import (
	"context"
	"errors"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// propagateAll writes the positions in the recent complete pages back to the rows of their runs, then
// advances the hint. If there are void pages, it writes nothing back and returns their runs: the log may
// lack their events.
//
// periodic is set for the call that is made every few seconds; see review.
func (q *sequencer) propagateAll(ctx context.Context, periodic bool) (void []runstore.RunID, err error) {
	if void, err = q.review(ctx, periodic); err != nil || len(void) > 0 {
		return void, err
	}
	rows := map[string]mutation{}
	hint := int64(0)
	for number, g := range q.recent {
		if g.openState == nil {
			g.propagate(rows)
			hint = max(hint, number)
		}
	}
	if err := q.store.writeAll(ctx, slices.Collect(maps.Values(rows))); err != nil {
		return nil, err
	}
	if hint > 0 {
		if err := q.store.advanceHint(ctx, hint); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(q.recent, func(_ int64, g *feedPage) bool { return g.openState == nil })
	return nil, nil
}

// review reads the hint, and the recent pages that are not complete again, with one request for many. It
// drops void pages and returns their runs, drops pages that another handle has written back, and freezes
// pages that are closed. It closes the page that ends the log if no handle has appended between two periodic
// reviews, or if a program of format 4 has created the next page.
//
// A page is void if its block was compacted before the page was created. A handle that was suspended
// creates such a page: it takes the number for the end of the log, but other handles have used the
// number since and removed it. No reader finds the page. The check needs no clock, which may stand still
// while a machine is suspended. If the handle dies before the check, it has written nothing back, so the
// orphan scan publishes the events again.
func (q *sequencer) review(ctx context.Context, periodic bool) (void []runstore.RunID, err error) {
	asked := map[int64]bool{}
	for number := range q.created {
		if start := blockStart(number); start != number {
			asked[start] = true
		}
	}
	for number, g := range q.recent {
		if g.openState != nil {
			asked[number] = true
		}
	}
	if q.open != nil {
		asked[q.end+1] = true
	}
	when := q.store.observe()
	found, hint, err := q.store.readPagesAndHint(ctx, slices.Collect(maps.Keys(asked)))
	if err != nil {
		return nil, err
	}
	q.reached = max(q.reached, hint)
	if void, err = q.dropVoid(ctx, when, found); err != nil || len(void) > 0 {
		return void, err
	}
	for _, number := range slices.Sorted(maps.Keys(q.recent)) {
		g := found[number]
		if q.recent[number].openState == nil {
			continue
		}
		if g == nil { // another handle has written it back, and its block was compacted
			delete(q.recent, number)
			continue
		}
		if g.isOpen() && (found[number+1] != nil || periodic && q.open != nil && q.lastReview == pageState{number, g.entries}) {
			if g, err = q.store.closePage(ctx, g, number+1); err == nil && g == nil { // another handle has frozen it
				now, unread := q.store.readPages(ctx, number)
				g, err = now[number], unread
			}
			if err != nil || g == nil {
				return nil, err
			}
		}
		if g.openState != nil && !g.open {
			if g, err = q.store.freezePage(ctx, g); err != nil {
				return nil, err
			}
		}
		if q.record(g); number == q.end {
			q.setEnd(g)
		}
	}
	if periodic && q.open != nil {
		q.lastReview = pageState{q.end, q.open.entries}
	}
	maps.DeleteFunc(q.recent, func(number int64, _ *feedPage) bool { return number <= hint }) // another handle has written them back
	return nil, nil
}

// pageState identifies the state of a page at a review.
type pageState struct {
	number  int64
	entries int
}

// dropVoid deletes the void pages that this handle has created and returns their runs. found has the
// first pages of their blocks, read after when.
func (q *sequencer) dropVoid(ctx context.Context, when observation, found map[int64]*feedPage) (runs []runstore.RunID, err error) {
	var dead []string
	for number := range q.created {
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
		clear(q.created)
		return nil, nil
	}
	if err := q.store.deleteDead(ctx, when, dead); err != nil && !errors.Is(err, errRaised) {
		return nil, err
	}
	// What the handle knew of the log is wrong. If the epoch was raised, the pages stay.
	q.reset()
	return runs, nil
}

// checkEpoch drops what the handle knows of the log if the epoch was raised, and reports whether it did: a
// failover may have lost the log's end and events that the handle remembers. The raise has written the
// positions in the log back to the rows of the runs. A handle that stayed open during the failover asks
// for the epoch when it has committed to a run of a later one, and when it finds that the log goes on far
// above what it knew: epochGap numbers are between the logs of two epochs.
func (q *sequencer) checkEpoch(ctx context.Context) (dropped bool, err error) {
	q.mu.Lock()
	newest := q.newestEpoch
	q.mu.Unlock()
	now := q.store.currentEpoch()
	if newest > 0 && (now == nil || now.Epoch < newest) || q.reached-q.checked >= epochGap/2 {
		if _, err := q.store.readEpochs(ctx); err != nil {
			return false, err
		}
		now, q.checked = q.store.currentEpoch(), q.reached
	}
	if now == nil || now.Epoch == q.epoch {
		return false, nil
	}
	q.reset()
	q.epoch = now.Epoch
	return true, nil
}

// reset drops what the handle knows of the log, so that the next round begins with the hint.
func (q *sequencer) reset() {
	q.end, q.open = 0, nil
	clear(q.recent)
	clear(q.fed)
	clear(q.created)
}

// columnHint is the column of the hint. Programs of format 4 keep another one in the column "", and
// advance that one past open pages, which they take for complete ones.
const columnHint = "p"

// advanceHint records that all pages up to a number are written back to the rows of their runs. The hint is a
// high-water mark: it never goes back.
func (s *engine) advanceHint(ctx context.Context, hint int64) error {
	m := bigtable.NewMutation()
	if hint > 0 { // to Bigtable, a range that ends at 0 has no end
		m.DeleteTimestampRange(familyOther, columnHint, 0, timestampOf(hint))
	}
	m.Set(familyOther, columnHint, timestampOf(hint), []byte(be64(hint)))
	return s.writeAll(ctx, []mutation{{kindHint, m, 64}})
}

// hint returns the number up to which all pages are written back to the rows of their runs.
func (s *engine) hint(ctx context.Context) (hint int64, err error) {
	_, hint, err = s.readPagesAndHint(ctx, nil)
	return hint, err
}

// hintOf returns the hint in its row, or 0: then rounds begin with the first page.
func hintOf(r bigtable.Row) int64 {
	value := cell(r, familyOther, columnHint)
	if value == nil { // no program of format 5 has opened the store yet
		value = cell(r, familyOther, "")
	}
	if len(value) != 8 {
		return 0
	}
	return fromBE64(string(value))
}
