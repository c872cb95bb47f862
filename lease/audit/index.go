package audit

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// scan reads an index from its begin to its end, and checks the entries of the partition's runs.
func (c *checker) scan(ctx context.Context, s *partition, index runstore.IndexName) error {
	q := runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: runstore.MaxPage, Heads: true}
	var last time.Time
	for {
		page, err := c.store.ScanIndex(ctx, q)
		if damaged(err) {
			c.publish(Finding{Kind: KindDamaged, Index: index, Problem: problem("the index cannot be read: %v", err)})
			return nil
		}
		if err != nil || len(page) == 0 {
			return err
		}
		byRun := map[*runState][]runstore.IndexEntry{}
		for _, e := range page {
			if r := c.track(s, e.Run); r != nil {
				if e.At.Before(last) {
					c.add(r, Finding{Kind: KindIndex, Index: index, Key: e.Record.Key, Problem: problem("the entry at %v follows one at %v", e.At, last)})
				}
				r.entries++
				byRun[r] = append(byRun[r], e)
			}
			if e.At.After(last) {
				last = e.At
			}
		}
		for r, entries := range byRun {
			if s.runs[r.id] != r { // dropped from the partition meanwhile
				continue
			}
			switch index {
			case runstore.IndexRuns:
				c.checkListed(r, entries)
			case runstore.IndexRunnable:
				c.checkRunnable(r, entries)
			default:
				if err := c.checkEntries(ctx, r, index, entries); err != nil {
					return err
				}
			}
		}
		next := page[len(page)-1].Cursor
		if next == q.After {
			c.publish(Finding{Kind: KindIndex, Index: index, Problem: problem("the scan does not get beyond the cursor %q", next)})
			return nil
		}
		q.After = next
	}
}

// checkListed checks a run's entries in IndexRuns. The head of an entry was read in the same state
// as the entry.
func (c *checker) checkListed(r *runState, entries []runstore.IndexEntry) {
	for _, e := range entries {
		f := Finding{Kind: KindIndex, Index: runstore.IndexRuns}
		switch {
		case e.Head.ID != e.Run:
			f.Problem = problem("the entry has the head of run %q", string(e.Head.ID))
		case e.Head.Unlisted:
			f.Problem = "an unlisted run is listed"
		case !e.At.Equal(e.Head.CreatedAt):
			f.Problem = problem("the entry is at %v, and the run was created at %v", e.At, e.Head.CreatedAt)
		case r.listed:
			f.Problem = "the run is listed twice"
		}
		if f.Problem != "" {
			c.add(r, f)
		}
		r.listed, r.createdAt = true, e.Head.CreatedAt
	}
}

// checkRunnable checks a run's entries in IndexRunnable. A scan may show an entry twice that was
// moved meanwhile.
func (c *checker) checkRunnable(r *runState, entries []runstore.IndexEntry) {
	for _, e := range entries {
		r.runnable, r.createdAt = true, e.Head.CreatedAt
		latest := e.Head.RunnableAt
		if h := e.Head.Holder; h.ExpiresAt.After(latest) {
			latest = h.ExpiresAt
		}
		f := Finding{Kind: KindIndex, Index: runstore.IndexRunnable}
		switch {
		case e.Head.ID != e.Run:
			f.Problem = problem("the entry has the head of run %q", string(e.Head.ID))
		case e.Head.RunnableAt.IsZero():
			f.Problem = "the run has no runnable time"
		case e.At.Before(e.Head.RunnableAt), e.At.After(latest):
			f.Problem = problem("the entry is at %v, which is not from the runnable time %v to %v", e.At, e.Head.RunnableAt, latest)
		}
		if f.Problem != "" {
			c.add(r, f)
		}
	}
}

// checkEntries compares a run's entries on a page of an index of records with the records that the
// run has now. A record that was changed in between has a higher version or is gone; the second
// reading then shows another entry or none.
func (c *checker) checkEntries(ctx context.Context, r *runState, index runstore.IndexName, entries []runstore.IndexEntry) error {
	for len(entries) > 0 {
		n := min(len(entries), runstore.MaxRecordKeys)
		part := entries[:n]
		entries = entries[n:]
		var keys []runstore.RecordKey
		for _, e := range part {
			if e.Head.ID != e.Run {
				c.add(r, Finding{Kind: KindIndex, Index: index, Key: e.Record.Key, Problem: problem("the entry has the head of run %q", string(e.Head.ID))})
			}
			if e.Record.Key == "" || e.Record.Version < 1 {
				c.add(r, Finding{Kind: KindIndex, Index: index, Key: e.Record.Key, Version: e.Record.Version, Problem: "the entry has no record"})
				continue
			}
			keys = append(keys, e.Record.Key)
		}
		if len(keys) == 0 {
			continue
		}
		records, err := c.store.ReadRecords(ctx, r.id, runstore.RecordQuery{Keys: keys})
		if err != nil && !errors.Is(err, runstore.ErrNotFound) {
			if damaged(err) {
				c.add(r, Finding{Kind: KindDamaged, Index: index, Problem: problem("the records of entries cannot be read: %v", err)})
				return nil
			}
			return err
		}
		current := map[runstore.RecordKey]runstore.Record{}
		for _, rec := range records {
			current[rec.Key] = rec
		}
		for _, e := range part {
			if e.Record.Key == "" || e.Record.Version < 1 {
				continue
			}
			f := Finding{Kind: KindIndex, Index: index, Key: e.Record.Key, Version: e.Record.Version}
			switch rec := current[e.Record.Key]; {
			case rec.Version == 0:
				f.Problem = "the run has no such record"
			case rec.Version != e.Record.Version:
				f.Problem = problem("the run has version %d of the record", rec.Version)
			case !equal(rec, e.Record):
				f.Problem = "the entry shows another value or other stamps than the run"
			default:
				continue
			}
			c.add(r, f)
		}
	}
	return nil
}

// equal reports whether two readings of a record are equal.
func equal(a, b runstore.Record) bool {
	return a.Key == b.Key && a.Version == b.Version && bytes.Equal(a.Value, b.Value) &&
		sameStamp(a.Created, b.Created) && sameStamp(a.Updated, b.Updated)
}

func sameStamp(a, b runstore.Stamp) bool {
	return a.Seq == b.Seq && a.Token == b.Token && a.Time.Equal(b.Time)
}
