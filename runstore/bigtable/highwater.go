package bigtable

import (
	"errors"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// highWater is a run's high-water mark in the feed: up to which event the feed has the run's journal.
// The run's row records it; only the log records the positions of the events.
type highWater struct {
	through int64              // the seq of the last event that the feed has
	at      bigtable.Timestamp // of the cell with that seq
	// steps are earlier high-water marks. Only a failover that lost the end of the log needs them; see
	// engine.survivingEvents.
	steps []step
	old   []string // columns of steps that are not needed any more
}

// step is the high-water mark of a log that ends with a given page.
type step struct {
	number, through int64
	column          string
}

const (
	// pagesPerStep is how many pages share a step, which is that of the newest of them. 4096: a step
	// costs the row some 50 bytes.
	pagesPerStep = 1 << 12
	// stepsKept is how many steps a row keeps when it is sealed: those of 65,536 pages, which the
	// busiest log takes minutes for.
	stepsKept = hintMargin / pagesPerStep
)

// The columns of the feed's family. The timestamp of their cells is the number of a page, so the cell of
// an older page never hides that of a newer one. Early programs wrote extents instead: columns with the
// prefix "p" that said where in the feed some events are.
func columnThrough(generation int64) string { return "t" + be64(generation) }

// columnPaged records the same as columnThrough, for pages that were open. A program of format 4 writes
// only columnThrough, and for such a page it records what the page was created with, perhaps after this
// program has recorded all of it. Such a program refuses a row with this column, so pages that may have
// events of runs of format 4 do not set it.
func columnPaged(generation int64) string { return "u" + be64(generation) }
func columnStep(generation, number int64) string {
	return columnThrough(generation) + be64(number/pagesPerStep)
}

// highWater decodes the run's high-water mark in the feed.
func (r *row) highWater() (*highWater, error) {
	x, generation := &highWater{}, be64(r.head.Generation)
	for _, item := range r.cells[familyFeed] {
		q := qualifier(familyFeed, item)
		switch {
		case (q == "t"+generation || q == columnPaged(r.head.Generation)) && len(item.Value) == 8:
			x.through, x.at = max(x.through, fromBE64(string(item.Value))), max(x.at, item.Timestamp)
		case strings.HasPrefix(q, "t"+generation) && len(q) == 17 && len(item.Value) == 8:
			x.steps = append(x.steps, step{numberOf(item.Timestamp), fromBE64(string(item.Value)), q})
		case strings.HasPrefix(q, "p"+generation) && len(q) == 17 && len(item.Value) == 16: // an extent: its first seq, length and position
			last := fromBE64(q[9:]) + fromBE64(string(item.Value[:8])) - 1
			x.steps = append(x.steps, step{fromBE64(string(item.Value[8:])) >> positionBits, last, q})
		case !strings.HasPrefix(q, "p") && !strings.HasPrefix(q, "t") && !strings.HasPrefix(q, "u"):
			return nil, errHighWater
		}
	}
	slices.SortFunc(x.steps, func(a, b step) int { return int(a.through - b.through) })
	for _, old := range x.steps[:max(len(x.steps)-stepsKept, 0)] {
		x.old = append(x.old, old.column)
	}
	return x, nil
}

var errHighWater = corrupt(errors.New("a cell of the feed's family that this program did not write"))

// propagate adds the high-water marks that a page yields to the changes of its runs' rows. Handles may
// write the changes more than once, and late. So the page must not be open: a late write of what the
// page named earlier would replace what the page names now.
func (g *feedPage) propagate(rows map[string]mutation) {
	for _, r := range g.Ranges {
		key := runKey(runstore.RunID(r.Run))
		row, there := rows[key]
		if !there {
			row = mutation{key: key, m: bigtable.NewMutation()}
		}
		through := []byte(be64(r.From + r.N - 1))
		columns := []string{columnStep(r.Generation, g.number), columnThrough(r.Generation)}
		if g.WasOpen || g.openState != nil {
			columns = append(columns, columnPaged(r.Generation))
		}
		for _, column := range columns {
			row.m.DeleteTimestampRange(familyFeed, column, 0, timestampOf(g.number))
			row.m.Set(familyFeed, column, timestampOf(g.number), through)
		}
		row.n += 256
		rows[key] = row
	}
}
