package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
