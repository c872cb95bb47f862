package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// A reader of the newest events does not follow those who write meanwhile.
func TestNewestEventsWhileOthersWrite(t *testing.T) {
	t.Parallel()
	for _, events := range []int{1, runstore.MaxPage} {
		t.Run(fmt.Sprint(events, " events"), func(t *testing.T) {
			t.Parallel()
			p := newDatabase(t, fair)
			writer := open(t, p)
			lease := hold(t, writer, "run")
			data := make([]string, events)
			commit(t, writer, appending(lease, data...))
			var requests atomic.Int64
			const most = 8 // requests that find more events: the reader asks for fewer
			reader := open(t, p, func(o *spanner.Options) {
				o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
					func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						if strings.HasSuffix(method, "ExecuteStreamingSql") && requests.Add(1) <= most {
							commit(t, writer, appending(lease, data...))
						}
						return begin(ctx, desc, cc, method, opts...)
					}))
			})
			requests.Store(0)
			page, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: 3})
			if err != nil || len(page) == 0 {
				t.Errorf("got %d events, %v", len(page), err)
			}
			if n := requests.Load(); n >= most {
				t.Errorf("%d requests, each of which found that others had written", n)
			}
		})
	}
}

// Events beyond the last rank of a window share it: they are read once no other can join them, and
// all on one page.
func TestEventsBeyondTheLastRank(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	const ranks = 3
	opened := func(bits int) *spanner.Store {
		s := open(t, p)
		s.SetWindows(bits, ranks)
		return s
	}
	endless, short := opened(49), opened(14) // windows of years, and of 16 ms
	lease := hold(t, endless, "run")
	commit(t, endless, appending(lease, "1", "2", "3", "4", "5"))
	if all, err := endless.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(all) != ranks-1 {
		t.Errorf("in a window that goes on: got %d events, %v, want %d", len(all), err, ranks-1)
	}
	commit(t, endless, appending(lease, "6"))
	feedOf(t, short, 6) // the window is over
	for _, limit := range []int{1, 2, 3, 4, 10} {
		var got strings.Builder
		var after runstore.Position
		for {
			page, err := short.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got.Write(e.Data)
			}
			after = page[len(page)-1].Position
		}
		if got.String() != "123456" {
			t.Errorf("in pages of %d: got %s, want each event once", limit, got.String())
		}
	}
}

// A feed grows while handles are open that know of fewer shards: each reads all events, at the
// same positions.
func TestFeedGrows(t *testing.T) {
	t.Parallel()
	const each = 12
	p := newDatabase(t, fair)
	before := open(t, p)
	hold(t, before, "run")
	writeAll := func(stores ...*spanner.Store) {
		t.Helper()
		for range each {
			for _, s := range stores {
				commit(t, s, signal("run", "event"))
			}
		}
	}
	writeAll(before)
	grown := open(t, p, func(o *spanner.Options) { o.FeedShards = 64 })
	after := open(t, p, func(o *spanner.Options) { o.FeedShards = 16 }) // it does not shrink
	writeAll(before, grown, after)
	c := raw(t, p)
	if n := count(t, c, "SELECT FeedShards FROM Store"); n != 64 {
		t.Errorf("the feed has %d shards, want 64", n)
	}
	if n := count(t, c, "SELECT MAX(Shard) FROM Feed"); n < 16 {
		t.Errorf("the last shard with an event is %d, want one of those that were added", n)
	}
	var positions []runstore.Position
	for i, s := range []*spanner.Store{before, grown, after} {
		found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100})
		if err != nil || len(found) != 4*each {
			t.Fatalf("handle %d reads %d events, error %v, want %d", i, len(found), err, 4*each)
		}
		for j, e := range found {
			switch {
			case e.Seq != runstore.Seq(j+1):
				t.Errorf("handle %d reads event %d at %d", i, e.Seq, j)
			case i == 0:
				positions = append(positions, e.Position)
			case e.Position != positions[j]:
				t.Errorf("handle %d reads event %d at position %d, the first at %d", i, e.Seq, e.Position, positions[j])
			}
		}
	}
}

// TestFeedCannotGrow checks that a handle whose request to grow the feed is refused is not opened, and
// that one whose request is lost grows the feed with the next.
func TestFeedCannotGrow(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	hold(t, open(t, p), "run")
	grow := func(o *spanner.Options) { o.FeedShards = 16 }
	isGrowth := func(c spanneremulator.Call) bool {
		r, ok := c.Request.(*spannerpb.ExecuteSqlRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetTransactionTag() == "tapestore-grow-feed"
	}
	refused := p.server.Refuse(0, codes.PermissionDenied, isGrowth)
	if _, err := tryOpen(t, p, grow); !errors.Is(err, runstore.ErrUnavailable) || refused.Count() == 0 {
		t.Errorf("refused: got %v, want ErrUnavailable", err)
	}
	refused.Stop()
	lost := p.server.Refuse(1, codes.Unavailable, isGrowth)
	defer lost.Stop()
	s := open(t, p, patient, grow)
	if n := count(t, raw(t, p), "SELECT FeedShards FROM Store"); n != 16 || lost.Count() == 0 {
		t.Errorf("the feed has %d shards after %d lost requests, want 16 after one", n, lost.Count())
	}
	commit(t, s, signal("run", "event"))
	feedOf(t, s, 1)
}

// TestFeedGrowsTwiceAtOnce checks that a handle that is opened to grow the feed does not shrink it if
// another handle has grown it further meanwhile: no reader would find the events in the shards beyond.
func TestFeedGrowsTwiceAtOnce(t *testing.T) {
	t.Parallel()
	const events = 12 // all of them are in the first 16 of 64 shards once in 17 million runs
	p := newDatabase(t, fair)
	hold(t, open(t, p), "run")
	var once sync.Once
	overtaken := false
	s := open(t, p, patient, func(o *spanner.Options) { o.FeedShards = 16 }, beforeSending(func(request any) {
		r, ok := request.(*spannerpb.ExecuteSqlRequest)
		if !ok || r.GetRequestOptions().GetTransactionTag() != "tapestore-grow-feed" {
			return
		}
		once.Do(func() {
			larger := open(t, p, patient, func(o *spanner.Options) { o.FeedShards = 64 })
			for range events {
				commit(t, larger, signal("run", "event"))
			}
			overtaken = true
		})
	}))
	if !overtaken {
		t.Fatal("the handle did not read the number of shards in the transaction that grows the feed")
	}
	if found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 100}); err != nil || len(found) != events {
		t.Errorf("got %d events, %v, want %d", len(found), err, events)
	}
	if n := count(t, raw(t, p), "SELECT FeedShards FROM Store"); n != 64 {
		t.Errorf("the feed has %d shards, want 64", n)
	}
}

// TestStoreBehindTheLastShard checks that the highest position of the store is found in the feed's
// last shard, which holds its only row: that of a new epoch.
func TestStoreBehindTheLastShard(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, raw(t, p), "SELECT Shard FROM Feed"); n != spanner.Shards-1 {
		t.Fatalf("the row of the epoch is in shard %d, want %d", n, spanner.Shards-1)
	}
	_, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: runstore.MaxPosition, Limit: 1})
	if behind := (*runstore.StoreBehindError)(nil); !errors.As(err, &behind) || behind.Known <= 0 {
		t.Errorf("got %v, want ErrStoreBehind with the position of the epoch", err)
	}
}

// TestFeedLooksBackOverTheStoresLife checks that the end of the feed is found however long no event was
// written: positions last for 35 years and more.
func TestFeedLooksBackOverTheStoresLife(t *testing.T) {
	t.Parallel()
	if got, want := spanner.LooksBack(), 35*365*24*time.Hour; got < want {
		t.Errorf("the end of the feed is looked for in the last %v, want at least %v", got, want)
	}
}
