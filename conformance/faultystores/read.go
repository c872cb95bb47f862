package faultystores

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// readStores read wrongly, or maintain an index wrongly.
func readStores() []faultyStore {
	return []faultyStore{
		{"reads-from-a-stale-copy", "GetRun answers from a copy that is one read behind.",
			"I6/reads-see-what-was-acknowledged-before", staleReads},
		{"readers-meet-a-lock", "A reader that meets a writer's lock gives up.",
			"I6/reads-never-wait-for-a-writer", readersLocked},
		{"journal-from-is-exclusive", "A page of the journal begins after the requested seq.",
			"I5/pages-begin-where-asked", fromExclusive},
		{"index-entry-lost", "Sometimes a batch is applied without its index entries.",
			"I9/every-acknowledged-entry-is-found", entryLost},
		{"stale-index-entry", "A put without a place leaves the record where it was in the index.",
			"I9/replaced-places-vanish", entryStays},
		{"due-by-the-callers-clock", "A scan of due entries takes the time from the caller's process.",
			"I7/wrong-clock-sees-what-is-due", dueByCaller},
		{"feed-up-to-the-callers-clock", "The feed ends at the present time of the reader's process.",
			"I7/wrong-clock-reads-the-whole-feed", feedByCaller},
		{"feed-in-allocation-order", "Positions are assigned when a commit begins, and readers pass those of open commits.",
			"I10/a-tailing-reader-misses-nothing-though-commits-are-held-open", feedByAllocation},
		{"feed-page-skips", "A page of the feed that ends early is resumed one position too far.",
			"I10/resuming-after-each-position-yields-the-rest", feedSkips},
		{"feed-stops-in-a-gap", "A position that no event has is taken for the end of the feed.",
			"I10/resuming-between-two-positions-yields-the-rest", feedStopsInAGap},
		{"feed-by-rank", "A position counts the events that are stored, so that a purge frees the last ones for others.",
			"I10/a-purged-position-is-given-to-no-other-event", feedByRank},
		{"purge-raises-the-epoch", "A purge raises the epoch, and so skips the positions that it lost.",
			"I10/a-purged-position-is-given-to-no-other-event", purgeRaises},
		{"journal-page-skips-what-does-not-fit", "A page of the journal leaves out the event that passes its size, and goes on with smaller ones.",
			"I5/journal-pages-of-large-and-tiny-events-lose-nothing", journalSkips},
		{"record-page-skips-what-does-not-fit", "A page of records leaves out the record that passes its size, and goes on with smaller ones.",
			"I6/record-pages-of-large-and-tiny-values-lose-nothing", recordsSkip},
		{"index-page-skips-what-does-not-fit", "A page of an index leaves out the entry that passes its size, and goes on with smaller ones.",
			"I9/index-pages-of-large-and-tiny-entries-lose-nothing", scanSkips},
		{"feed-ends-at-purged-events", "A page of the feed that holds nothing but purged events is taken for the end.",
			"I10/purged-events-do-not-end-the-feed", feedEndsAtPurged},
		{"feed-page-skips-what-does-not-fit", "A page of the feed leaves out the event that passes its size, and goes on with smaller ones.",
			"I10/feed-pages-of-large-and-tiny-events-lose-nothing", feedSkipsLarge},
		{"newest-is-the-first-page", "A reader that asks for the newest events gets the oldest.",
			"I10/the-newest-events-are-the-end-of-the-feed", newestIsFirst},
		{"newest-without-their-grant", "The newest events lack the owner and the token under which they were written.",
			"I10/the-newest-events-are-the-end-of-the-feed", newestWithoutGrant},
		{"newest-counts-what-fits", "The newest events are the first of the requested events that fit into a page.",
			"I10/the-newest-events-are-the-last-though-large", newestFromTheFront},
		{"newest-counts-purged-events", "Purged events count among the newest, so a page may be empty although other events exist.",
			"I10/the-newest-events-are-those-before-a-purged-end", newestCountsPurged},
		{"epochs-cost-too-much", "A raise of the epoch takes 2^49 positions, of which there are 16 in 2^53.",
			"I10/positions-stay-exact-in-javascript-through-every-epoch", epochsCostTooMuch},
		{"prefix-as-a-pattern", "A prefix is matched without regard to case, as LIKE does.",
			"I12/record-keys-of-any-byte-stay-apart", prefixFolded},
	}
}

func staleReads(s *store) {
	type key struct {
		h  *handle
		id runstore.RunID
	}
	var mu sync.Mutex
	copies := map[key]runstore.Run{}
	s.get = func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error) {
		mu.Lock()
		defer mu.Unlock()
		run, err := h.Handle.GetRun(ctx, id)
		if err != nil {
			return run, err
		}
		copied, ok := copies[key{h, id}]
		copies[key{h, id}] = run
		if ok {
			return copied, nil
		}
		return run, nil
	}
}

func readersLocked(s *store) {
	lock := make(chan struct{}, 1)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		lock <- struct{}{}
		defer func() { <-lock }()
		return h.Handle.Commit(ctx, b)
	}
	s.get = func(ctx context.Context, h *handle, id runstore.RunID) (runstore.Run, error) {
		timeout := time.NewTimer(10 * time.Millisecond)
		defer timeout.Stop()
		select {
		case lock <- struct{}{}:
			defer func() { <-lock }()
			return h.Handle.GetRun(ctx, id)
		case <-timeout.C:
			return runstore.Run{}, &runstore.OpError{Op: "get run", Run: id, Err: runstore.ErrUnavailable}
		}
	}
}

func fromExclusive(s *store) {
	s.journal = func(ctx context.Context, h *handle, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
		if from > 1 {
			from++
		}
		return h.Handle.ReadJournal(ctx, id, from, limit)
	}
}

// changed returns b with its record writes changed by f.
func changed(b runstore.Batch, f func(r *runstore.RecordWrite)) runstore.Batch {
	b.Records = slices.Clone(b.Records)
	for i := range b.Records {
		f(&b.Records[i])
	}
	return b
}

func entryLost(s *store) {
	lost := everyNth(9)
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		return h.Handle.Commit(ctx, changed(b, func(r *runstore.RecordWrite) {
			if lost() {
				r.Index = nil
			}
		}))
	}
}

func entryStays(s *store) {
	type key struct {
		run    runstore.RunID
		record runstore.RecordKey
	}
	var mu sync.Mutex
	places := map[key][]runstore.Place{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		defer mu.Unlock()
		return h.Handle.Commit(ctx, changed(b, func(r *runstore.RecordWrite) {
			at := key{b.Run(), r.Key}
			switch {
			case r.Delete:
				delete(places, at)
			case len(r.Index) == 0:
				r.Index = places[at]
			default:
				places[at] = r.Index
			}
		}))
	}
}

func dueByCaller(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		if now, err := h.clock(ctx); err == nil && q.Until.IsZero() {
			q.Until = now
		}
		return h.Handle.ScanIndex(ctx, q)
	}
}

func feedByCaller(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		page, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
		now, clockErr := h.clock(ctx)
		for i, event := range page {
			if clockErr == nil && event.Time.After(now) {
				return page[:i], err
			}
		}
		return page, err
	}
}

// feedByAllocation assigns the positions of a batch when the commit begins and shows the batch when
// the commit ends. A reader passes the positions of a commit that is held open.
func feedByAllocation(s *store) {
	type place struct {
		run runstore.RunID
		seq runstore.Seq
	}
	var mu sync.Mutex
	next := runstore.Position(1)
	at := map[place]runstore.Position{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		mu.Lock()
		first := next
		next += runstore.Position(len(b.Events))
		mu.Unlock()
		runtime.Gosched()
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && !done.Replayed {
			mu.Lock()
			defer mu.Unlock()
			for i := range b.Events {
				at[place{b.Run(), done.FirstSeq + runstore.Seq(i)}] = first + runstore.Position(i)
			}
		}
		return done, err
	}
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		all, err := wholeFeed(ctx, h)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		var found []runstore.FeedEvent
		for _, event := range all {
			if event.Position = at[place{event.Run, event.Seq}]; event.Position > after {
				found = append(found, event)
			}
		}
		slices.SortFunc(found, func(a, b runstore.FeedEvent) int { return cmp.Compare(a.Position, b.Position) })
		return found[:min(limit, len(found))], nil
	}
}

func feedSkips(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		events, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
		if after > 0 && len(events) > 1 {
			events = events[1:]
		}
		return events, err
	}
}

func feedStopsInAGap(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		all, err := wholeFeed(ctx, h)
		if err != nil || after > 0 && !slices.ContainsFunc(all, func(e runstore.FeedEvent) bool { return e.Position == after }) {
			return nil, err
		}
		return h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
	}
}

func newestIsFirst(s *store) {
	s.newest = func(ctx context.Context, h *handle, limit int) ([]runstore.FeedEvent, error) {
		return h.Handle.ReadFeed(ctx, runstore.FeedQuery{Limit: limit})
	}
}

func newestWithoutGrant(s *store) {
	s.newest = func(ctx context.Context, h *handle, limit int) ([]runstore.FeedEvent, error) {
		events, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: limit})
		for i := range events {
			events[i].Owner, events[i].Token = "", 0
		}
		return events, err
	}
}

func newestFromTheFront(s *store) {
	s.newest = func(ctx context.Context, h *handle, limit int) ([]runstore.FeedEvent, error) {
		all, err := wholeFeed(ctx, h)
		page, size := all[max(len(all)-limit, 0):], 0
		for i, e := range page {
			if size += len(e.Data); size > runstore.MaxPageBytes {
				return page[:i+1], err
			}
		}
		return page, err
	}
}

// newestCountsPurged counts positions as events: the reference store leaves positions out only at
// purged events.
func newestCountsPurged(s *store) {
	var mu sync.Mutex
	highest := runstore.Position(0)
	s.newest = func(ctx context.Context, h *handle, limit int) ([]runstore.FeedEvent, error) {
		all, err := wholeFeed(ctx, h)
		var behind *runstore.StoreBehindError
		_, end := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: runstore.MaxPosition, Limit: 1})
		mu.Lock()
		defer mu.Unlock()
		if errors.As(end, &behind) {
			highest = max(highest, runstore.Position(behind.Known))
		}
		return slices.DeleteFunc(all, func(e runstore.FeedEvent) bool { return e.Position+runstore.Position(limit) <= highest }), err
	}
}

// feedEndsAtPurged looks only at the limit positions after the cursor, none of which may hold an
// event any more.
func feedEndsAtPurged(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		page, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
		for len(page) > 0 && page[len(page)-1].Position > after+runstore.Position(limit) {
			page = page[:len(page)-1]
		}
		return page, err
	}
}

// epochsCostTooMuch uses 2^49 more positions for each epoch than the reference store, which uses
// 2^40.
func epochsCostTooMuch(s *store) {
	away := func(p runstore.Position) runstore.Position { return p + p>>40<<49 }
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		page, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after - after>>49<<49, Limit: limit})
		for i := range page {
			page[i].Position = away(page[i].Position)
		}
		return page, err
	}
	s.journal = func(ctx context.Context, h *handle, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
		events, err := h.Handle.ReadJournal(ctx, id, from, limit)
		for i := range events {
			events[i].Position = away(events[i].Position)
		}
		return events, err
	}
}

// wholeFeed returns the feed of the reference store from its beginning.
func wholeFeed(ctx context.Context, h *handle) (all []runstore.FeedEvent, err error) {
	for after := runstore.Position(0); ; after = all[len(all)-1].Position {
		page, err := h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
	}
}

func feedByRank(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		all, err := wholeFeed(ctx, h)
		if err != nil {
			return nil, err
		}
		for i := range all {
			all[i].Position = runstore.Position(i + 1)
		}
		rest := all[min(after, runstore.Position(len(all))):]
		return rest[:min(limit, len(rest))], nil
	}
}

// purgeRaises breaks no rule of the feed. Its fault is the raise of the epoch: it ends the grants
// of all runs although nothing was lost.
func purgeRaises(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && b.Purge {
			_, err = h.Handle.RaiseEpoch(ctx, "positions were purged")
		}
		return done, err
	}
}

// fitPage reads a page one entry at a time and leaves out each entry that would exceed the size of
// a page, except the first. next returns the entry after last, or the first entry if last is nil.
func fitPage[V any](limit int, next func(last *V) ([]V, error), size func(V) int) (page []V, err error) {
	var last *V
	for sum := 0; len(page) < limit; {
		one, err := next(last)
		if err != nil {
			return nil, err
		}
		if len(one) == 0 {
			break
		}
		last = &one[0]
		if n := size(one[0]); len(page) == 0 || sum+n <= runstore.MaxPageBytes {
			page = append(page, one[0])
			sum += n
		}
	}
	return page, nil
}

func journalSkips(s *store) {
	s.journal = func(ctx context.Context, h *handle, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
		return fitPage(limit, func(last *runstore.Event) ([]runstore.Event, error) {
			if last != nil {
				from = last.Seq + 1
			}
			return h.Handle.ReadJournal(ctx, id, from, 1)
		}, func(e runstore.Event) int { return len(e.Data) })
	}
}

func recordsSkip(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		if len(q.Keys) > 0 {
			return h.Handle.ReadRecords(ctx, id, q)
		}
		limit := q.Limit
		q.Limit = 1
		return fitPage(limit, func(last *runstore.Record) ([]runstore.Record, error) {
			if last != nil {
				q.After = last.Key
			}
			return h.Handle.ReadRecords(ctx, id, q)
		}, func(r runstore.Record) int { return len(r.Value) })
	}
}

func scanSkips(s *store) {
	s.scan = func(ctx context.Context, h *handle, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
		limit := q.Limit
		q.Limit = 1
		return fitPage(limit, func(last *runstore.IndexEntry) ([]runstore.IndexEntry, error) {
			if last != nil {
				q.After = last.Cursor
			}
			return h.Handle.ScanIndex(ctx, q)
		}, func(e runstore.IndexEntry) int { return len(e.Record.Value) + len(e.Head.Summary.Value) })
	}
}

func feedSkipsLarge(s *store) {
	s.feed = func(ctx context.Context, h *handle, after runstore.Position, limit int) ([]runstore.FeedEvent, error) {
		return fitPage(limit, func(last *runstore.FeedEvent) ([]runstore.FeedEvent, error) {
			if last != nil {
				after = last.Position
			}
			return h.Handle.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: 1})
		}, func(e runstore.FeedEvent) int { return len(e.Data) })
	}
}
