package bigtable_test

import (
	"encoding/base64"
	"fmt"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// maxPageRequests is the most that a page of the feed may cost which has an event.
const maxPageRequests = 32

// boundedPages reads the feed to its end, and checks that no page costs more requests than
// it may. It returns
// how many events and pages there were.
func boundedPages(t *testing.T, s *bigtable.Store, count func() int64) (events, pages int) {
	t.Helper()
	var after runstore.Position
	for {
		count()
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return events, pages
		}
		if n := count(); n > maxPageRequests {
			t.Errorf("page %d, of %d events, cost %d requests, want up to %d", pages+1, len(page), n, maxPageRequests)
		}
		for _, e := range page {
			if e.Position <= after || e.Err != nil {
				t.Fatalf("position %d comes after %d, %v", e.Position, after, e.Err)
			}
			after = e.Position
		}
		events, pages = events+len(page), pages+1
	}
}

// A page of the feed is bounded in requests, also where each of its events takes some of its
// own: it ends early. The pages that follow have what it left.
func TestFeedPageIsBoundedInRequests(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	const runs = 1000
	keys, log := make([]string, runs), make([]*client.Mutation, runs)
	for i := range runs {
		id := fmt.Sprint("run ", i)
		var w runstore.Writes
		w.Append("test", []byte("event"))
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(id), Writes: w}); err != nil {
			t.Fatal(err)
		}
		// A page of the log for each, as many handles write them.
		keys[i], log[i] = bigtable.LogKey(int64(i+1)), client.NewMutation()
		log[i].Set("x", "", 0, fmt.Appendf(nil, `{"by":1,"ranges":[{"run":%q,"life":1,"from":1,"n":1}]}`,
			base64.StdEncoding.EncodeToString([]byte(id))))
	}
	if errs, err := raw(t, table).ApplyBulk(t.Context(), keys, log); err != nil || errs != nil {
		t.Fatal(errs, err)
	}
	n := countReads(t, table, func(int64) {})
	events, pages := boundedPages(t, s, func() int64 { return n.Swap(0) })
	if events != runs || pages < 2 {
		t.Errorf("got %d events in %d pages, want %d in several", events, pages, runs)
	}
}

// A page that has an event does not read on through a long stretch of purged runs to find
// another. A page without one does: an empty one would say that nothing follows yet.
func TestFeedPageEndsInAPurgedStretch(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "first")
	commit(t, s, signal("first", "before them"))
	if err := bigtable.Publish(t.Context(), s, "first"); err != nil {
		t.Fatal(err)
	}
	s = stretchBehind(t, s, table, 1, 3000)
	n := countReads(t, table, func(int64) {})
	page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10})
	if err != nil || len(page) != 1 || page[0].Run != "first" || n.Load() > maxPageRequests {
		t.Errorf("got %v, %v for %d requests, want the event before the stretch for up to %d", page, err, n.Load(), maxPageRequests)
	}
	page, err = s.ReadFeed(t.Context(), runstore.FeedQuery{After: page[0].Position, Limit: 10})
	if err != nil || len(page) != 1 || page[0].Run != "run" {
		t.Errorf("got %v, %v, want the event behind the stretch", page, err)
	}
}

// A page of the feed ends before an event that only newer programs can read, also where it has
// room for those behind it.
func TestFeedPageEndsBeforeANewerRun(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	for _, id := range []runstore.RunID{"first", "run", "last"} {
		hold(t, s, id)
		commit(t, s, signal(id, "event"))
		if err := bigtable.Publish(t.Context(), s, id); err != nil {
			t.Fatal(err)
		}
	}
	newer(t, tbl, "run", "format", 100)
	for limit := 1; limit < 5; limit++ {
		if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: limit}); err != nil || len(page) != 1 || page[0].Run != "first" {
			t.Errorf("limit %d: got %v, %v, want the event before", limit, page, err)
		}
	}
}
