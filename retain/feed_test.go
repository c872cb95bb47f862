package retain_test

import (
	"context"
	"io"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// A reader that is less than the feed's window behind finds every event, and one that is further behind
// continues without an error.
func TestReadersOfTheFeed(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		var at runstore.Position
		var unread []string
		read := func(after runstore.Position) (seen []string, last runstore.Position) {
			for {
				page := must(s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 3}))(t)
				if len(page) == 0 {
					return seen, after
				}
				for _, e := range page {
					if e.Run != admin.OperationsRun {
						seen = append(seen, string(e.Run)+e.Kind)
					}
					after = e.Position
				}
			}
		}
		o := options(t)
		purged := int64(0)
		for n := range 40 {
			endedRun(t, s, runID(n))
			c.advance(7 * day)
			purged += pass(t, s, o).Purged
			if n%4 == 3 { // a reader that comes every 28 days
				unread, at = read(at)
				for i := n - 3; i <= n; i++ {
					for _, kind := range []string{"began", "ended"} {
						if len(unread) == 0 || unread[0] != string(runID(i))+kind {
							t.Fatalf("at run %d: the reader finds %v", n, unread)
						}
						unread = unread[1:]
					}
				}
			}
		}
		if purged < 25 {
			t.Errorf("%d runs were purged", purged)
		}
		if all, _ := read(0); len(all) != int(40-purged)*2 {
			t.Errorf("a reader from the start finds %d events", len(all))
		}
	})
}

// A mark that a crashed step over two runs has left is swept, and the next pass purges the run.
func TestMarksAreSwept(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		endedRun(t, s, "run", func(w *runstore.Writes) { w.Put(crossrun.Reserved+"mark/0/lead", nil) })
		c.advance(window + day)
		o := options(t)
		if report := pass(t, s, o); report.Kept[retain.KeptStep] != 1 || !exists(t, s, "run") {
			t.Fatalf("%+v", report)
		}
		if report := pass(t, s, o); report.Purged != 1 {
			t.Errorf("the next pass: %+v", report)
		}
	})
}

// beforeWrite calls before ahead of each object.
type beforeWrite struct {
	retain.Target
	before func()
}

func (b beforeWrite) Write(ctx context.Context, name string, write func(io.Writer) error) error {
	b.before()
	return b.Target.Write(ctx, name, write)
}

// A run that changes between the decision and its archive leaves no object under the name of the state
// that was decided on, and is kept. One that is purged meanwhile is gone.
func TestStoreChangesWhileArchiving(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		for _, purged := range []bool{false, true} {
			endedRun(t, s, "run")
			c.advance(window + day)
			o := options(t)
			o.Archive = beforeWrite{o.Archive, func() {
				commit(t, s, "run", func(w *runstore.Writes) {
					if w.Purge = purged; !purged {
						w.Append("late", nil)
					}
				})
			}}
			report := pass(t, s, o)
			if report.Purged != 0 || len(files(t, o.Archive)) != 0 || report.Gone == 0 && report.Kept[retain.KeptChanged] == 0 || purged != (report.Gone == 1) {
				t.Errorf("purged %v: %+v, objects %v", purged, report, files(t, o.Archive))
			}
			if !purged {
				commit(t, s, "run", func(w *runstore.Writes) { w.Purge = true })
			}
		}
	})
}
