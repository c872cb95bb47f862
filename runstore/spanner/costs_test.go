package spanner_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
)

// methods returns the RPCs that f makes.
func (l *ledger) methods(f func()) string {
	var all []string
	for _, one := range l.during(f) {
		all = append(all, one.method)
	}
	return rpcs(all...)
}

// TestPurgeRPCs counts the transactions of a purge: one for each full number of records, one for what
// is left, and more if the events need more.
func TestPurgeRPCs(t *testing.T) {
	t.Parallel()
	const atOnce = 4
	var l ledger
	s := open(t, newDatabase(t, fair), l.keep, patient)
	s.SetPurgeBatch(atOnce)
	for _, tc := range []struct{ events, records, steps int }{
		{0, 0, 1}, {4, 0, 1}, {5, 0, 2}, {9, 0, 3}, {0, 3, 1}, {0, 4, 2}, {0, 5, 2}, {0, 8, 3}, {4, 4, 2}, {5, 5, 2},
	} {
		id := runstore.RunID(fmt.Sprint(tc))
		b := appending(hold(t, s, id), make([]string, tc.events)...)
		for i := range tc.records {
			b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), nil)
		}
		if tc.events+tc.records > 0 {
			commit(t, s, b)
		}
		step := []string{keys, keys, commits}
		want := slices.Concat([]string{sql, commits}, slices.Repeat(step, tc.steps-1), []string{keys, keys, keys, commits})
		if got := l.methods(func() { commit(t, s, purgeOf(id)) }); got != rpcs(want...) {
			t.Errorf("%d events and %d records: got the RPCs %s, want %s", tc.events, tc.records, got, rpcs(want...))
		}
	}
}

// TestEndOfTheFeedRPCs counts the requests that look for the end of the feed.
func TestEndOfTheFeedRPCs(t *testing.T) {
	t.Parallel()
	var l ledger
	p := newDatabase(t, fair)
	s := open(t, p, l.keep, patient)
	read := func(q runstore.FeedQuery, want error) (requests int) {
		t.Helper()
		got := l.methods(func() {
			if _, err := s.ReadFeed(t.Context(), q); !errors.Is(err, want) || (want == nil) != (err == nil) {
				t.Errorf("%+v: got %v, want %v", q, err, want)
			}
		})
		requests = strings.Count(got, sql)
		if got != rpcs(slices.Repeat([]string{sql}, requests)...) {
			t.Errorf("%+v: got the RPCs %s, want statements only", q, got)
		}
		return requests
	}
	ahead := runstore.FeedQuery{After: runstore.MaxPosition, Limit: 1}
	if n := read(ahead, runstore.ErrStoreBehind); n != 6 {
		t.Errorf("ahead of an empty feed: %d requests, want a page and five time ranges", n)
	}
	old := client.InsertMap("Feed", row{"Shard": 0, "Committed": time.Now().AddDate(0, 0, -40), "Slot": 0})
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{old}); err != nil {
		t.Fatal(err)
	}
	if n := read(ahead, runstore.ErrStoreBehind); n != 7 {
		t.Errorf("ahead of an old feed: %d requests, want a page, five time ranges and the rank", n)
	}
	hold(t, s, "run")
	lastMinute := func(q runstore.FeedQuery, wantErr error, want int) {
		t.Helper()
		for {
			done := commit(t, s, signal("run", "event"))
			n := read(q, wantErr)
			now, err := s.Now(t.Context())
			switch {
			case err != nil:
				t.Fatal(err)
			case now.Sub(done.Time) >= time.Minute:
				continue // on a slow machine the event is not in the last minute
			case n != want:
				t.Errorf("%+v: %d requests, want %d", q, n, want)
			}
			return
		}
	}
	lastMinute(ahead, runstore.ErrStoreBehind, 3)
	lastMinute(runstore.FeedQuery{Newest: true, Limit: 1}, nil, 2)
	if n := read(runstore.FeedQuery{Newest: true, Limit: runstore.MaxPage}, nil); n != 6 {
		t.Errorf("more of the newest events than there are: %d requests, want five time ranges and a page", n)
	}
}
