package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// TestGaps checks where a reader begins behind ranges of the feed that are known to hold no event.
func TestGaps(t *testing.T) {
	t.Parallel()
	type gap = [2]runstore.Position
	many := []gap{{10_000, 20_000}}
	for i := range runstore.Position(spanner.MaxGaps) {
		many = append(many, gap{10 * i, 10*i + 5})
	}
	for _, tc := range []struct {
		after, want runstore.Position
		gaps        []gap
	}{
		{5, 5, nil},
		{9, 9, []gap{{10, 20}}},
		{10, 20, []gap{{10, 20}}},
		{19, 20, []gap{{10, 20}}},
		{20, 20, []gap{{10, 20}}},
		{10, 30, []gap{{10, 20}, {20, 30}}},
		{10, 30, []gap{{20, 30}, {10, 20}}},
		{10, 20, []gap{{10, 20}, {21, 30}}},
		{12, 20, []gap{{10, 20}, {15, 17}}},
		{10_000, 10_000, many},
		{0, 5, many},
	} {
		if got := spanner.SkipGaps(tc.after, tc.gaps...); got != tc.want {
			t.Errorf("behind %d with the gaps %v: got %d, want %d", tc.after, tc.gaps, got, tc.want)
		}
	}
}

// TestGapsBackwards checks where a reader goes on that reads backwards.
func TestGapsBackwards(t *testing.T) {
	t.Parallel()
	at := spanner.PositionAt
	type gap = [2]runstore.Position
	for _, tc := range []struct {
		before, want int64
		gaps         []gap
	}{
		{5, 5, nil},
		{5, 3, []gap{{at(3, 0), at(5, 0)}}},
		{4, 3, []gap{{at(3, 0), at(5, 0)}}},
		{3, 3, []gap{{at(3, 0), at(5, 0)}}},
		{6, 6, []gap{{at(3, 0), at(5, 0)}}},
		{5, 4, []gap{{at(3, 2), at(5, 7)}}},
		{5, 1, []gap{{at(3, 0), at(5, 0)}, {at(1, 0), at(3, 0)}}},
		{9, 2, []gap{{at(6, 0), at(9, 0)}, {at(2, 0), at(4, 0)}, {at(3, 5), at(7, 1)}}},
	} {
		if got := spanner.SkipGapsBack(tc.before, tc.gaps...); got != tc.want {
			t.Errorf("before window %d with the gaps %v: got %d, want %d", tc.before, tc.gaps, got, tc.want)
		}
	}
}

// TestUsedGapIsKept checks that many gaps of one reader do not push out that of another, which uses it.
func TestUsedGapIsKept(t *testing.T) {
	t.Parallel()
	add, skip := spanner.NewGaps()
	add(1_000_000, 2_000_000)
	for i := range runstore.Position(3 * spanner.MaxGaps) {
		add(10*i, 10*i+5)
		if got := skip(1_000_000); got != 2_000_000 {
			t.Fatalf("after %d other gaps the reader begins behind %d, want 2000000", i+1, got)
		}
	}
}

// TestReaderGetsPastAPurge checks that a reader gets past the rows of purged runs, though the context
// of each of its calls ends after one request, and that a reader behind them does not read them again.
func TestReaderGetsPastAPurge(t *testing.T) {
	t.Parallel()
	const purged = 20
	p := newDatabase(t, fair)
	writer := open(t, p)
	lease := hold(t, writer, "purged")
	b := appending(lease)
	for range purged {
		b.Append("test", nil)
	}
	commit(t, writer, b)
	commit(t, writer, purgeOf("purged"))

	var cut context.CancelFunc
	requests := 0
	s := open(t, p, beforeSending(func(request any) {
		if r, ok := request.(*spannerpb.ExecuteSqlRequest); !ok || r.GetRequestOptions().GetRequestTag() != "tapestore-feed" {
			return
		}
		if requests++; requests > 1 && cut != nil {
			cut()
		}
	}))
	read := func() (found []runstore.FeedEvent, err error) {
		var ctx context.Context
		ctx, cut = context.WithCancel(t.Context())
		defer cut()
		requests = 0
		return s.ReadFeed(ctx, runstore.FeedQuery{Limit: 1})
	}
	for calls := 1; ; calls++ {
		found, err := read()
		if err == nil && len(found) == 0 {
			break // the end
		}
		if !errors.Is(err, context.Canceled) || calls > purged {
			t.Fatalf("call %d: got %v, error %v, want the end of the feed after at most %d", calls, found, err, purged)
		}
	}
	hold(t, writer, "run")
	commit(t, writer, signal("run", "event"))
	found, err := read()
	if err != nil || len(found) != 1 || string(found[0].Data) != "event" || requests != 1 {
		t.Errorf("got %v, error %v, after %d requests, want the event after one", found, err, requests)
	}
	if again, err := open(t, p).ReadFeed(t.Context(), runstore.FeedQuery{Limit: 1}); err != nil || fmt.Sprint(again) != fmt.Sprint(found) {
		t.Errorf("another handle: got %v, error %v, want the same", again, err)
	}
}

// TestNewestEventsBehindAPurge checks that the newest events before many rows without events are found,
// though the context of each call ends after seven requests, and that later calls do not read those rows
// again.
func TestNewestEventsBehindAPurge(t *testing.T) {
	t.Parallel()
	const purged, apart, atOnce = 6000, 400 * time.Microsecond, 7
	p := newDatabase(t, fair)
	writer := open(t, p, patient)
	hold(t, writer, "run")
	last := commit(t, writer, signal("run", "event")).Time.Add(5 * time.Millisecond) // not before the commit timestamp
	past(t, writer, last.Add(purged*apart))
	var rows []*client.Mutation
	for i := range purged { // ten in a window
		at := last.Add(time.Duration(i) * apart)
		rows = append(rows, client.InsertMap("Feed", row{"Shard": 0, "Committed": at, "Slot": 0}))
	}
	if _, err := raw(t, p).Apply(t.Context(), rows); err != nil {
		t.Fatal(err)
	}

	var cut context.CancelFunc
	requests := 0
	s := open(t, p, patient, beforeSending(func(request any) {
		if r, ok := request.(*spannerpb.ExecuteSqlRequest); ok && strings.HasPrefix(r.GetRequestOptions().GetRequestTag(), "tapestore-feed") {
			if requests++; requests > atOnce {
				cut()
			}
		}
	}))
	s.SetWindows(12, 1000)
	read := func() ([]runstore.FeedEvent, error) {
		var ctx context.Context
		ctx, cut = context.WithCancel(t.Context())
		defer cut()
		requests = 0
		return s.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	}
	found, err := read()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the first call: got %v, error %v, want its context's end", found, err)
	}
	for calls := 2; errors.Is(err, context.Canceled); calls++ {
		if calls > atOnce {
			t.Fatalf("not found by %d calls", calls)
		}
		found, err = read()
	}
	if err != nil || len(found) != 1 || string(found[0].Data) != "event" {
		t.Errorf("got %v, error %v, want the event", found, err)
	}
	commit(t, writer, signal("run", "later"))
	cut = func() {}
	both, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: 2})
	if err != nil || len(both) != 2 || string(both[0].Data)+" "+string(both[1].Data) != "event later" {
		t.Errorf("got %v, error %v, want both events", both, err)
	}
}

// TestNewestEventsAmongPurgedRows checks that each number of the newest events is the end of the feed,
// where windows have both events and rows without events.
func TestNewestEventsAmongPurgedRows(t *testing.T) {
	t.Parallel()
	const events = 20
	p := newDatabase(t, fair)
	s, c := open(t, p, patient), raw(t, p)
	hold(t, s, "run")
	var last time.Time
	for range events {
		last = commit(t, s, signal("run", "event")).Time
	}
	past(t, s, last.Add(10*time.Millisecond))
	var rows []*client.Mutation
	err := c.Single().Query(t.Context(), client.Statement{SQL: "SELECT Committed FROM Feed"}).Do(func(found *client.Row) error {
		var at time.Time
		err := found.Columns(&at)
		for _, beside := range []time.Duration{-3, -2, -1, 1, 2, 3} {
			rows = append(rows, client.InsertOrUpdateMap("Feed", row{"Shard": 0, "Committed": at.Add(beside * 100 * time.Microsecond), "Slot": 0}))
		}
		return err
	})
	if err == nil {
		_, err = c.Apply(t.Context(), rows)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
	if err != nil || len(all) != events {
		t.Fatalf("got %d events, error %v, want %d", len(all), err, events)
	}
	for limit := 1; limit <= events; limit++ {
		found, err := open(t, p, patient).ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: limit})
		if want := all[events-limit:]; err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
			t.Errorf("%d newest events: got %v, error %v, want %v", limit, found, err, want)
		}
	}
}

// TestGapOfTheNewestEventsEndsBeforeTheOpenWindow reads the newest events where only the newest row is in a window
// in which further events may be committed, and no row has an event. The reader's gap must not hide these.
func TestGapOfTheNewestEventsEndsBeforeTheOpenWindow(t *testing.T) {
	t.Parallel()
	const bits = 43 // a window is 102 days
	p := newDatabase(t, fair)
	s := open(t, p, patient)
	s.SetWindows(bits, 1000)
	hold(t, s, "run")
	old := time.Date(2025, 8, 1, 0, 0, 0, 0, time.UTC)
	var rows []*client.Mutation
	for i := range 12 {
		rows = append(rows, client.InsertMap("Feed", row{"Shard": 0, "Committed": old.Add(time.Duration(i*5*24) * time.Hour), "Slot": 0}))
	}
	if _, err := raw(t, p).Apply(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil { // which adds the newest row
		t.Fatal(err)
	}
	if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: 1}); err != nil || len(found) != 0 {
		t.Fatalf("got %v, error %v, want no event", found, err)
	}
	commit(t, s, signal("run", "later"))
	window := int64(old.Sub(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds() >> bits)
	for _, after := range []runstore.Position{0, spanner.PositionAt(window, 1), spanner.PositionAt(window+1, 1)} {
		found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 1})
		if err != nil || len(found) != 1 || string(found[0].Data) != "later" {
			t.Errorf("behind %d: got %v, error %v, want the event", after, found, err)
		}
	}
}
