package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// scanPage is how many entries a page of a scan has.
const scanPage = 100

// indexScan reads the first page of an index repeatedly, and compares it with the acknowledged
// entries.
type indexScan struct {
	store runstore.RunStore
	index runstore.IndexName
	name  string
	own   bool // an index of records
	runs  *filledRuns

	order []int // the runs of the index, in its order
	pages int
}

// query returns the query for a page. In a store with runs of other programs it begins at the
// oldest of the benchmark's runs.
func (c *indexScan) query(limit int) runstore.IndexQuery {
	q := runstore.IndexQuery{Index: c.index, Limit: limit}
	if c.runs.shared && !c.own {
		q.From = c.runs.start
		if c.index == runstore.IndexRuns {
			q.From = c.runs.start.Add(2 * time.Hour)
		}
	}
	return q
}

// whole reads the index to its end. It must hold exactly the acknowledged runs, in the order of
// their times.
func (c *indexScan) whole(ctx context.Context) error {
	numbers := make(map[runstore.RunID]int, len(c.runs.ids))
	want := 0
	for i, id := range c.runs.ids {
		numbers[id] = i
		if c.index != runstore.IndexRunnable || !c.runs.live[i] {
			want++
		}
	}
	c.order = c.order[:0]
	found := make([]bool, len(c.runs.ids))
	var last time.Time
	for e, err := range runstore.Entries(ctx, c.store, c.query(0)) {
		if err != nil {
			return err
		}
		i, ours := numbers[e.Run]
		if !ours && c.runs.shared {
			continue
		}
		if !ours {
			return fmt.Errorf("run %q is in the index, which was never acknowledged", e.Run)
		}
		if err := c.check(&e, i); err != nil {
			return err
		}
		if found[i] || e.At.Before(last) {
			return fmt.Errorf("run %d is in the index twice, or behind a later one", i)
		}
		found[i], last = true, e.At
		c.order = append(c.order, i)
	}
	if len(c.order) != want {
		return fmt.Errorf("the index has %d runs; %d were acknowledged", len(c.order), want)
	}
	return nil
}

// check compares an entry with the acknowledged state of run i.
func (c *indexScan) check(e *runstore.IndexEntry, i int) error {
	at, data := c.runs.at(i), e.Head.Summary.Value
	if c.index == runstore.IndexRuns {
		at = c.runs.created[i]
	}
	if c.own {
		data = e.Record.Value
	}
	switch {
	case e.Run != c.runs.ids[i]:
		return fmt.Errorf("run %q is in the index where run %q belongs", e.Run, c.runs.ids[i])
	case !e.At.Equal(at):
		return fmt.Errorf("run %d is in the index at %v, and was acknowledged at %v", i, e.At, at)
	case numberOf(data) != i:
		return fmt.Errorf("run %d is in the index with the record of run %d", i, numberOf(data))
	case c.index == runstore.IndexRunnable && c.runs.live[i]:
		return fmt.Errorf("run %d is in the index, and under a live lease", i)
	}
	return nil
}

func (c *indexScan) round(ctx context.Context, d time.Duration, m *Measured) error {
	q := c.query(scanPage)
	load, err := Drive(ctx, 1, d, func(ctx context.Context, _ int) error {
		page, err := c.store.ScanIndex(ctx, q)
		if err != nil {
			return err
		}
		c.pages++
		return c.checkPage(page)
	})
	if err != nil {
		return err
	}
	m.Add(Rate, "pages/s", More, load.PerSecond())
	m.Quantiles("page", load.Latencies)
	return nil
}

// checkPage compares a page with the first entries of the index.
func (c *indexScan) checkPage(page []runstore.IndexEntry) error {
	next := 0
	for i := range page {
		e := &page[i]
		if next < len(c.order) && e.Run == c.runs.ids[c.order[next]] {
			if err := c.check(e, c.order[next]); err != nil {
				return err
			}
			next++
		} else if !c.runs.shared {
			return fmt.Errorf("entry %d of a page is run %q, which does not belong there", i, e.Run)
		}
	}
	if want := min(scanPage, len(c.order)); next < want && !c.runs.shared || len(page) < want {
		return fmt.Errorf("a page has %d of the first %d runs of the index", next, want)
	}
	return nil
}

func (c *indexScan) verify(ctx context.Context) (string, error) {
	if err := c.whole(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pages; the index has the %d runs that were acknowledged", c.pages, len(c.order)), nil
}
