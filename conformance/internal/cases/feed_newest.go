package cases

import (
	"bytes"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// newest reads the newest events of the feed and compares all that they show with the end of feed.
func newest(t harness.T, s runstore.RunStore, limit int, feed []runstore.FeedEvent) {
	t.Helper()
	page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: limit})
	if err != nil {
		t.Errorf("the newest %d events: %v", limit, err)
		return
	}
	text := func(event runstore.FeedEvent) string {
		return fmt.Sprintf("%s, %q by %q under %v at %v", kit.FeedName(event), event.Kind, event.Owner, event.Token, event.Time)
	}
	kit.CheckOrder(t, fmt.Sprintf("the newest %d events", limit), kit.NamesOf(page, text), kit.NamesOf(feed[max(len(feed)-limit, 0):], text))
}

func feedNewest(t harness.T, e *harness.Env) {
	newest(t, e.Store, 10, nil)
	total := scatter(t, e, 8)
	e.Append(t, e.Store, e.Acquire(t, e.Store, "one", "owner"), "under a fence")
	total++
	feed := kit.FeedOf(t, e, e.Store, total)
	other := e.Reopen(t)
	for _, limit := range []int{1, 3, total, runstore.MaxPage} {
		for _, s := range []runstore.RunStore{e.Store, other} {
			newest(t, s, limit, feed)
		}
	}
	b := runstore.NewBatch("two", runstore.Unguarded("test"))
	b.Append("event", []byte("first"))
	b.Append("event", []byte("second"))
	kit.MustCommit(t, e.Store, b)
	var rest []runstore.FeedEvent
	e.Await(t, harness.CaseTimeout, func() bool {
		rest = kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), other, feed[total-1].Position, 1))
		return len(rest) >= 2
	})
	feed = append(feed, rest...)
	newest(t, e.Store, 2, feed)
	newest(t, other, runstore.MaxPage, feed)
}

func feedNewestLarge(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	large := bytes.Repeat([]byte("x"), largeEvent)
	const n = 7
	for i := range n {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("large", large)
		b.Append("tiny", fmt.Append(nil, i))
		kit.MustCommit(t, e.Store, b)
	}
	feed := kit.FeedOf(t, e, e.Store, 2*n)
	page, err := e.Store.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: runstore.MaxPage})
	size := 0
	for _, event := range page {
		size += len(event.Data)
	}
	if err != nil || len(page) == 0 || size > runstore.MaxPageBytes+largeEvent {
		t.Fatalf("the newest events: got %d of %d bytes, error %v; want as many of the last as pass %d bytes", len(page), size, err, runstore.MaxPageBytes)
	}
	kit.CheckOrder(t, "the newest events", kit.NamesOf(page, kit.FeedName), kit.NamesOf(feed[2*n-len(page):], kit.FeedName))
}

func feedNewestPurged(t harness.T, e *harness.Env) {
	runs := []runstore.RunID{"left", "purged-1", "purged-2", "purged-3"}
	for i, id := range runs {
		spec := runstore.RunSpec{ID: id}
		spec.Writes.Append("event", []byte(id))
		spec.Writes.Append("event", []byte("second"))
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create run %q: %v", id, err)
		}
		if i > 0 {
			kit.FeedOf(t, e, e.Store, 4) // purge the run only once its event is in the feed
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Purge = true
			kit.MustCommit(t, e.Store, b)
		}
	}
	feed := kit.FeedOf(t, e, e.Store, 2)
	for _, limit := range []int{1, 2, 5} {
		newest(t, e.Store, limit, feed)
	}
}
