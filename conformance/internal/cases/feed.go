package cases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// Feeds returns the cases that prove I10: a reader that resumes from its last position misses no
// event, and positions only grow.
func Feeds() []harness.Case {
	return []harness.Case{
		{Guarantee: "I10", Name: "the-feed-holds-every-event-once", Run: feedHoldsAll, Doc: `
			Twelve batches of one to three events go to two runs, and one event is appended under a lease. The feed,
			empty before, then holds each event once at a positive position, and run by run it equals the journals. A
			store that leaves out unfenced events, or delivers one twice, fails.`},
		{Guarantee: "I10", Name: "resuming-after-each-position-yields-the-rest", Run: feedResumes, Doc: `
			A reader resumes the feed after each of its positions, in pages of three sizes. It gets exactly the events
			that follow, in the same order and at the same positions. A store that resumes one position too far, or
			numbers events by the page, makes a reader miss or repeat one.`},
		{Guarantee: "I10", Name: "resuming-between-two-positions-yields-the-rest", Needs: []harness.Need{harness.NeedEpoch}, Run: feedGaps, Doc: `
			A reader resumes at positions that no event has: before the first event, and in the gaps between two
			events, also where an epoch was raised. It gets the next event. A store that finds nothing there keeps a
			reader waiting for ever that has looked for its position by time.`},
		{Guarantee: "I10", Name: "a-tailing-reader-misses-nothing", Run: func(t harness.T, e *harness.Env) { tail(t, e, nil) }, Doc: `
			Four handles commit to five runs at random while three readers follow the feed from their last positions,
			in pages of 1, 7 and the largest count. Each reader sees every event once, run by run in the order of the
			seqs, and all three see one order. A store that lets a reader pass the position of an open commit loses
			its events.`},
		{Guarantee: "I10", Name: "a-tailing-reader-misses-nothing-though-commits-are-held-open", Needs: []harness.Need{harness.NeedBlockWriters}, Run: tailStalled, Doc: `
			Four handles commit while writers are repeatedly blocked at the engine and released, and three readers
			follow the feed. Each reader sees every event once, run by run in the order of the seqs. A store that takes
			a position when a commit begins, and shows later positions before it ends, loses the event for a reader
			that has passed.`},
		{Guarantee: "I10", Name: "positions-grow-over-a-purge", Run: feedOverPurge, Doc: `
			The run that holds the feed's last position is purged, then an older one. The rest of the feed stays as it
			was, a reader may resume after any purged position, and the next events, of a new run of a purged id and
			of another run, are above the highest position before. A store that hands a purged position out again
			hides the new event from that reader.`},
		{Guarantee: "I10", Name: "a-purged-position-is-given-to-no-other-event", Run: feedPositionsUsedOnce, Doc: `
			The only run in the feed is purged and created anew, three times over, by one handle. Each new event is
			at a position above all before, and both handles read it after the purged position. A store that numbers
			events by those that it still has gives the position to another event; one that raises its epoch for a
			purge hides the loss.`},
		{Guarantee: "I10", Name: "purged-events-do-not-end-the-feed", Run: feedPastPurged, Doc: `
			Five runs are purged whose events follow each other in the feed, and one event is left behind them. Reads
			from before, from within and from the end of the gap, with limits below its length, return that event
			alone. A store that takes a page of nothing but purged events for the end stops a reader short.`},
		{Guarantee: "I10", Name: "the-end-of-the-feed-is-empty", Run: feedEnd, Doc: `
			A reader asks for the events after the last position, and after a position that the store never assigned.
			The first read is empty, through two handles, and later returns the next event alone; the second is
			ErrStoreBehind with both positions. A store that answers the second with an empty page hides that it was
			restored.`},
		{Guarantee: "I10", Name: "the-newest-events-are-the-end-of-the-feed", Run: feedNewest, Doc: `
			A reader asks two handles for the newest events, with limits from one to more than there are, on an empty
			feed, a longer one, and after further events. It gets the last events in the order of the feed, with time,
			owner and token as there. A store that returns the first page, the order reversed, or events without
			their grant, fails.`},
		{Guarantee: "I10", Name: "the-newest-events-are-the-last-though-large", Run: feedNewestLarge, Doc: `
			The feed alternates largest and tiny events, more bytes than a page may have, and a reader asks for the
			newest. The page is within the limit in bytes (plus one event) and is exactly the end of the feed. A store
			that fills the page from the front of the requested events leaves out the last ones.`},
		{Guarantee: "I10", Name: "the-newest-events-are-those-before-a-purged-end", Run: feedNewestPurged, Doc: `
			The runs that hold the feed's last events are purged, and a reader asks for the newest one, two and five.
			It gets the last events that are left. A store that counts purged events among the newest returns an empty
			page although events are left.`},
		{Guarantee: "I10", Name: "feed-pages-of-large-and-tiny-events-lose-nothing", Run: mixedFeed, Doc: `
			Two runs alternate tiny and largest events, and the feed is read in pages of one, of three and of the
			largest count. All pages join to one list that holds every event, and a page ends with the event that
			passes the limit in bytes. A store that leaves this event out and continues with the tiny one after it
			loses the large one.`},
		{Guarantee: "I10", Name: "positions-stay-exact-in-javascript-through-every-epoch", Needs: []harness.Need{harness.NeedEpoch}, Run: feedThroughEpochs, Doc: `
			The epoch is raised many times (128 in a quick run, 256 in a full one) with an event in each. Positions
			grow and stay within 2^53, and at that cost for each raise all epochs that a token can hold fit in. A
			store whose raise skips too many positions runs out of numbers that a JavaScript client can tell apart.`},
	}
}

// scatter commits batches of 1 to 3 events to several runs and returns the number of events.
func scatter(t harness.T, e *harness.Env, batches int) (total int) {
	t.Helper()
	runs := []runstore.RunID{"one", "two", "three"}
	for _, id := range runs {
		e.Create(t, id)
	}
	for n := range batches {
		b := runstore.NewBatch(runs[n/2%3], runstore.Unguarded("test"))
		for range 1 + n%3 {
			b.Append("event", fmt.Append(nil, total))
			total++
		}
		kit.MustCommit(t, e.Store, b)
	}
	return total
}

func feedHoldsAll(t harness.T, e *harness.Env) {
	ctx := t.Context()
	if page, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{Limit: 1}); err != nil || len(page) != 0 {
		t.Errorf("the feed of an empty store: %+v, %v", page, err)
	}
	total := scatter(t, e, 12)
	lease := e.Acquire(t, e.Store, "one", "owner")
	e.Append(t, e.Store, lease, fmt.Sprint(total))
	feed := kit.FeedOf(t, e, e.Reopen(t), total+1)
	journals := map[runstore.RunID][]runstore.Event{}
	for _, event := range feed {
		if event.Position <= 0 {
			t.Errorf("event %d of %q is at position %d", event.Seq, event.Run, event.Position)
		}
		journals[event.Run] = append(journals[event.Run], event.Event)
	}
	for id, events := range journals {
		own := kit.Journal(t, e.Store, id)
		for i := range min(len(own), len(events)) { // an engine that does not know the positions in a journal returns 0
			own[i].Position = cmp.Or(own[i].Position, events[i].Position)
		}
		text := func(event runstore.Event) string { return fmt.Sprintf("%+v", event) }
		kit.CheckOrder(t, fmt.Sprintf("events of %q in the feed, beside its journal", id), kit.NamesOf(events, text), kit.NamesOf(own, text))
	}
}

func feedResumes(t harness.T, e *harness.Env) {
	feed := kit.FeedOf(t, e, e.Store, scatter(t, e, e.Scaled(t, "batches", 6, 15)))
	other := e.Reopen(t)
	for i := -1; i < len(feed); i++ {
		after := runstore.Position(0)
		if i >= 0 {
			after = feed[i].Position
		}
		for _, limit := range []int{1, 4, runstore.MaxPage} {
			rest := kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), other, after, limit))
			kit.CheckOrder(t, fmt.Sprintf("ReadFeed after position %d in pages of %d", after, limit),
				kit.NamesOf(rest, kit.FeedName), kit.NamesOf(feed[i+1:], kit.FeedName))
		}
	}
}

// feedGaps resumes at distances of powers of two behind each event, and just before the next one.
func feedGaps(t harness.T, e *harness.Env) {
	total := scatter(t, e, 3)
	e.RaiseEpoch(t, e.Store, "test")
	b := runstore.NewBatch("one", runstore.Unguarded("test"))
	b.Append("event", nil)
	kit.MustCommit(t, e.Store, b)
	other, last := e.Reopen(t), runstore.Position(0)
	for i, event := range kit.FeedOf(t, e, e.Store, total+1) {
		check := func(after runstore.Position) {
			page, err := other.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 1})
			if err != nil || len(page) != 1 || !sameEvent(page[0], event) {
				t.Errorf("after position %d, before event %d at position %d and behind position %d: %+v, %v", after, i, event.Position, last, page, err)
			}
		}
		for distance := runstore.Position(1); last+distance < event.Position; distance *= 2 {
			check(last + distance)
		}
		check(event.Position - 1)
		last = event.Position
	}
}

func sameEvent(a, b runstore.FeedEvent) bool {
	return a.Run == b.Run && a.Seq == b.Seq && a.Position == b.Position && string(a.Data) == string(b.Data)
}

func tail(t harness.T, e *harness.Env, disturb func(ctx context.Context) error) {
	const writers, runs = 4, 5
	ctx, each := t.Context(), e.Scaled(t, "commits of each writer", 8, 25)
	for i := range runs {
		e.Create(t, runstore.RunID(fmt.Sprint("run-", i)))
	}
	stores := kit.OpenHandles(t, e, writers)
	random := kit.Seeded(t)
	write := func() error {
		errs := make([]error, writers)
		disturbed, calm := context.WithCancel(ctx)
		var writing, disturbing sync.WaitGroup
		var disturbance error
		if disturb != nil {
			disturbing.Go(panics.Guarded(t, func() { disturbance = disturb(disturbed) }))
		}
		for i, s := range stores {
			writing.Go(panics.Guarded(t, func() {
				pick := random(i)
				for n := range each {
					b := runstore.NewBatch(runstore.RunID(fmt.Sprint("run-", pick.IntN(runs))), runstore.Unguarded("test"))
					for k := range 2 {
						b.Append("event", fmt.Appendf(nil, "%d/%d/%d", i, n, k))
					}
					if _, err := s.Commit(ctx, b); err != nil {
						errs[i] = err
						return
					}
				}
			}))
		}
		writing.Wait()
		calm()
		disturbing.Wait()
		return errors.Join(append(errs, disturbance)...)
	}
	total := writers * each * 2
	type reader struct {
		store runstore.RunStore
		limit int
		after runstore.Position
		seen  []runstore.FeedEvent
	}
	follow := func(r *reader) func() error {
		return func() error {
			events, err := kit.Collect(kit.FeedAfter(ctx, r.store, r.after, r.limit))
			r.seen = append(r.seen, events...)
			if len(events) > 0 {
				r.after = events[len(events)-1].Position
			}
			return err
		}
	}
	readers := []*reader{{store: e.Reopen(t), limit: 1}, {store: e.Reopen(t), limit: 7}, {store: stores[0], limit: runstore.MaxPage}}
	var watchers []func() error
	for _, r := range readers {
		watchers = append(watchers, follow(r))
	}
	kit.During(t, write, watchers...)
	// The feed may lag behind the commits. The readers wait for a marker event on every run: no
	// event of the same run can follow its marker. The order between runs need not be that of the
	// commits.
	for i := range runs {
		mark := runstore.NewBatch(runstore.RunID(fmt.Sprint("run-", i)), runstore.Unguarded("test"))
		mark.Append("mark", nil)
		kit.MustCommit(t, e.Store, mark)
	}
	for i, r := range readers {
		e.Await(t, harness.CaseTimeout, func() bool {
			if err := follow(r)(); err != nil {
				t.Fatalf("feed: %v", err)
			}
			marks := 0
			for _, event := range r.seen {
				if event.Kind == "mark" {
					marks++
				}
			}
			return marks >= runs
		})
		if len(r.seen) != total+runs {
			t.Errorf("reader %d, in pages of %d, saw %d events and the marks, want %d: %s", i, r.limit, len(r.seen)-runs, total, kit.SeqsOf(r.seen))
		}
		next := map[runstore.RunID]runstore.Seq{}
		for _, event := range r.seen {
			next[event.Run]++
			if event.Seq != next[event.Run] {
				t.Errorf("reader %d: at position %d seq %d of %q, want %d", i, event.Position, event.Seq, event.Run, next[event.Run])
			}
		}
		kit.CheckOrder(t, fmt.Sprintf("the feed that reader %d saw, beside reader 0", i), kit.NamesOf(r.seen, kit.FeedName), kit.NamesOf(readers[0].seen, kit.FeedName))
	}
}

// tailStalled makes commits end in another order than they began.
func tailStalled(t harness.T, e *harness.Env) {
	reader := e.Reopen(t)
	tail(t, e, func(ctx context.Context) error {
		for ctx.Err() == nil {
			blocked := kit.BlockWriters(t, e)
			blocked.Await(t, ctx.Done())
			for range 5 {
				if _, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil {
					blocked.Resume()
					return fmt.Errorf("feed while writers are held up: %w", err)
				}
			}
			blocked.Resume()
			if _, err := reader.CreateRun(t.Context(), runstore.RunSpec{ID: "let the writers through"}); err != nil {
				return err
			}
		}
		return nil
	})
}

func feedOverPurge(t harness.T, e *harness.Env) {
	ctx := t.Context()
	total := scatter(t, e, 9)
	feed := kit.FeedOf(t, e, e.Store, total)
	highest := feed[total-1].Position
	other := e.Reopen(t)        // opened before the purge, because a store that opens may raise its epoch
	purged := feed[total-1].Run // the run that holds the highest position
	rest := slices.Clone(feed)
	for _, of := range []int{total - 1, 0} {
		id := rest[min(of, len(rest)-1)].Run
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, e.Store, b)
		rest = slices.DeleteFunc(rest, func(event runstore.FeedEvent) bool { return event.Run == id })
	}
	kit.CheckOrder(t, "the feed after the purge, beside the events of the other runs",
		kit.NamesOf(kit.MustCollect(t, "feed", kit.FeedAfter(ctx, e.Store, 0, 2)), kit.FeedName), kit.NamesOf(rest, kit.FeedName))
	// A reader that had read to the end can still resume, and is not ahead of the store.
	for _, event := range feed {
		if _, err := other.ReadFeed(ctx, runstore.FeedQuery{After: event.Position, Limit: 1}); err != nil {
			t.Errorf("resuming after position %d, which was purged: %v", event.Position, err)
		}
	}
	e.Create(t, purged)
	for _, id := range []runstore.RunID{rest[0].Run, purged} {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("later", []byte(id))
		kit.MustCommit(t, e.Store, b)
	}
	var later []runstore.FeedEvent
	e.Await(t, harness.CaseTimeout, func() bool {
		later = kit.MustCollect(t, "feed", kit.FeedAfter(ctx, e.Store, highest, 10))
		return len(later) >= 2
	})
	got := map[string]int{} // in any order, because they belong to two runs
	for _, event := range later {
		got[string(event.Data)]++
	}
	kit.Equal(t, fmt.Sprintf("what comes after position %d, the highest before the purge", highest), got,
		map[string]int{string(rest[0].Run): 1, string(purged): 1})
}

// feedPositionsUsedOnce opens no handle after a purge, because an engine may look for lost
// positions when it opens, and then skip them.
func feedPositionsUsedOnce(t harness.T, e *harness.Env) {
	other := e.Reopen(t)
	var last runstore.Position
	for round := range 3 {
		e.Create(t, "run")
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("event", fmt.Append(nil, round))
		kit.MustCommit(t, e.Store, b)
		event := kit.FeedOf(t, e, e.Store, 1)[0]
		if event.Position <= last || string(event.Data) != fmt.Sprint(round) {
			t.Errorf("round %d: the event %q is at position %d, want %q at a position above %d, whose event was purged",
				round, event.Data, event.Position, fmt.Sprint(round), last)
		}
		for _, s := range []runstore.RunStore{e.Store, other} {
			page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: 10})
			if err != nil || len(page) != 1 || !sameEvent(page[0], event) {
				t.Errorf("round %d: the feed after position %d, whose event was purged: got %+v, %v; want the event at position %d", round, last, page, err, event.Position)
			}
		}
		last = max(last, event.Position)
		gone := runstore.NewBatch("run", runstore.Unguarded("test"))
		gone.Purge = true
		kit.MustCommit(t, e.Store, gone)
	}
}

// feedPastPurged purges runs whose events are adjacent in the feed, more events than a page holds,
// and reads across them.
func feedPastPurged(t harness.T, e *harness.Env) {
	ctx := t.Context()
	create := func(id runstore.RunID) {
		spec := runstore.RunSpec{ID: id}
		spec.Writes.Append("event", []byte(id))
		if _, err := e.Store.CreateRun(ctx, spec); err != nil {
			t.Fatalf("create run %q: %v", id, err)
		}
	}
	purged := []runstore.RunID{"purged-1", "purged-2", "purged-3", "purged-4", "purged-5"}
	for _, id := range purged {
		create(id)
	}
	gone := kit.FeedOf(t, e, e.Store, len(purged))
	create("left") // after all of those
	feed := kit.FeedOf(t, e, e.Store, len(purged)+1)
	for _, id := range purged {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, e.Store, b)
	}
	starts := []runstore.Position{0, gone[0].Position, gone[len(gone)-1].Position}
	for _, limit := range []int{1, 2, len(purged)} {
		for _, after := range starts {
			page, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{After: after, Limit: limit})
			if err != nil || len(page) != 1 || !sameEvent(page[0], feed[len(purged)]) {
				t.Errorf("ReadFeed after position %d with limit %d: got %+v, %v; want the event of %q alone, behind those that were purged",
					after, limit, page, err, "left")
			}
		}
	}
}

func feedEnd(t harness.T, e *harness.Env) {
	ctx := t.Context()
	total := scatter(t, e, 5)
	feed := kit.FeedOf(t, e, e.Store, total)
	last := feed[total-1].Position
	for _, s := range []runstore.RunStore{e.Store, e.Reopen(t)} {
		page, err := s.ReadFeed(ctx, runstore.FeedQuery{After: last, Limit: 10})
		if err != nil || len(page) != 0 {
			t.Errorf("after the last position: %+v, %v; want nothing", page, err)
		}
		_, err = s.ReadFeed(ctx, runstore.FeedQuery{After: last + 1_000_000_000_000, Limit: 10})
		var behind *runstore.StoreBehindError
		if !errors.As(err, &behind) || behind.Field != "position" || behind.Presented != int64(last)+1_000_000_000_000 || behind.Known < int64(last) {
			t.Errorf("after a position that the store never gave: %v, want ErrStoreBehind with both positions", err)
		}
	}
	// Events written after that follow.
	b := runstore.NewBatch("one", runstore.Unguarded("test"))
	b.Append("next", nil)
	kit.MustCommit(t, e.Store, b)
	e.Await(t, harness.CaseTimeout, func() bool {
		page, err := e.Store.ReadFeed(ctx, runstore.FeedQuery{After: last, Limit: 10})
		if err != nil || len(page) > 1 || len(page) == 1 && page[0].Kind != "next" {
			t.Fatalf("after the last position, once more was written: %+v, %v", page, err)
		}
		return len(page) == 1
	})
}
