package spanner_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// Of a purged run, whatever its size, only its row stays, and the places of its events in
// the feed.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		events int
		atOnce int // of a transaction; 0 for the adapter's own number
	}{{1, 0}, {1, 4}, {4, 4}, {10, 4}, {1000, 0}, {2500, 0}} {
		t.Run(fmt.Sprintf("%d events, %d at once", tc.events, tc.atOnce), func(t *testing.T) {
			t.Parallel()
			if tc.events >= 1000 && !effort.Full() {
				t.Skip("left to make test-full: purges of a thousand events and more; the rule is the same with few")
			}
			p := newPlace(t, fair)
			s := open(t, p, patient)
			s.SetAttemptTimeout(hang)
			most := runstore.MaxEvents
			if tc.atOnce > 0 {
				s.SetClearAtOnce(tc.atOnce)
				most = tc.atOnce
			}
			events := tc.events
			lease := hold(t, s, "run")
			for left := events; left > 0; left -= most {
				b := appending(lease)
				for range min(left, most) {
					b.Append("test", []byte("event"))
				}
				b.ID = runstore.BatchID(fmt.Sprint(left))
				b.Put("key", []byte("value"), runstore.Place{Index: "a", At: runstore.After(0)}, runstore.Place{Index: "b", At: runstore.After(0)})
				commit(t, s, b)
			}
			last := feedOf(t, s, events)
			commit(t, s, purging("run"))
			c := raw(t, p)
			for what, want := range map[string]int64{
				"Events": 0, "Records": 0, "Queue": 0, "Writes WHERE Callers": 0, "Writes WHERE Ended IS NULL": 0, "Feed": int64(events), "Feed WHERE Data IS NOT NULL": 0,
				"Runs": 1, "Runs WHERE Purging IS NOT NULL": 0,
			} {
				if n := count(t, c, "SELECT COUNT(*) FROM "+what); n != want {
					t.Errorf("%d rows in %s, want %d", n, what, want)
				}
			}
			for _, after := range []runstore.Position{0, last} { // who stands there is not ahead
				if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 10}); err != nil || len(found) != 0 {
					t.Errorf("the feed after %d: %v, %v", after, found, err)
				}
			}
		})
	}
}

// A purge stands whether or not its rows could be deleted. Nobody sees them, and the next
// handle deletes them.
func TestPurgeIsFinished(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fair)
	s := open(t, p)
	lease := hold(t, s, "run")
	b := appending(lease, "one", "two")
	b.Put("key", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	cut := p.server.Refuse(0, codes.PermissionDenied, func(c emulators.SpannerCall) bool {
		r, ok := c.Request.(*spannerpb.ReadRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetRequestTag() == "tapestore-purging"
	})
	defer cut.End()
	commit(t, s, purging("run"))
	if cut.Met() == 0 {
		t.Fatal("nothing was deleted, or by another statement")
	}
	raw := raw(t, p)
	if n := count(t, raw, "SELECT COUNT(*) FROM Events"); n != 2 {
		t.Fatalf("%d rows in the journal, want those that could not be deleted", n)
	}
	if _, err := s.ReadJournal(t.Context(), "run", 1, 10); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("journal: %v", err)
	}
	if _, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10}); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("records: %v", err)
	}
	if said := across(t, s, names{run: "run", second: "none"}); said[0] != "" {
		t.Errorf("the queues and the feed hold\n%s", said[0])
	}
	cut.End()
	open(t, p)
	await(t, "the rows are deleted", func() bool { return count(t, raw, "SELECT COUNT(*) FROM Runs WHERE Purging IS NOT NULL") == 0 })
	for _, table := range []string{"Events", "Records", "Queue"} {
		if n := count(t, raw, "SELECT COUNT(*) FROM "+table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
}

// feedOf waits until the feed has n events, and returns the position of the last.
func feedOf(t *testing.T, s *spanner.Store, n int) (last runstore.Position) {
	t.Helper()
	for n > 0 {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		if n -= len(page); len(page) > 0 {
			last = page[len(page)-1].Position
		}
	}
	return last
}
