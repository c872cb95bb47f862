package bigtable_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"testing"

	client "cloud.google.com/go/bigtable"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// stretch fills the feed of a new store with n segments of one event each, of a run that was
// purged, and puts an event of another run behind them.
func stretch(t testing.TB, table bigtableemulator.TableName, n int) *bigtable.Store {
	t.Helper()
	return stretchBehind(t, openBare(t, table), table, 0, n)
}

// stretchBehind is stretch for a store whose feed has segments already.
func stretchBehind(t testing.TB, s *bigtable.Store, table bigtableemulator.TableName, segments, n int) *bigtable.Store {
	t.Helper()
	tbl := raw(t, table)
	purge(t, s, hold(t, s, "gone"))
	all, muts := make([]string, n), make([]*client.Mutation, n)
	for i := range n {
		muts[i] = client.NewMutation()
		muts[i].Set("x", "", 0, fmt.Appendf(nil, `{"by":1,"ranges":[{"run":%q,"life":1,"from":%d,"n":1}]}`,
			base64.StdEncoding.EncodeToString([]byte("gone")), i+1))
		all[i] = bigtable.LogKey(int64(segments + i + 1))
	}
	if errs, err := tbl.ApplyBulk(t.Context(), all, muts); err != nil || errs != nil {
		t.Fatal(errs, err)
	}
	hold(t, s, "run")
	commit(t, s, signal("run", "behind them"))
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	return openBare(t, table) // which knows nothing of it
}

// countReads counts the requests that serve readers of the feed of a table, and has each done.
func countReads(t testing.TB, table bigtableemulator.TableName, each func(n int64)) *atomic.Int64 {
	t.Helper()
	n := &atomic.Int64{}
	isRead := served(table, "ReadRows")
	server(t).Watch(func(c bigtableemulator.Call) bool {
		if isRead(c) {
			each(n.Add(1))
		}
		return false
	})
	return n
}

// A stretch of the feed that holds only events of purged runs costs a request for each 64
// segments, and a few; a reader that has passed it once does not read it again.
func TestPurgedStretchCostsLittle(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 10, 1000} {
		table := newTable(t)
		s := stretch(t, table, 405)
		n := countReads(t, table, func(int64) {})
		for try, most := range []int64{20, 5} {
			n.Store(0)
			page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: limit})
			if err != nil || len(page) != 1 || page[0].Run != "run" {
				t.Fatalf("got %v, %v, want the event behind the stretch", page, err)
			}
			if n.Load() > most {
				t.Errorf("limit %d, try %d: it cost %d requests, want up to %d", limit, try+1, n.Load(), most)
			}
		}
	}
}

// A reader whose context ends within such a stretch has come on: it goes on there, and reaches
// its end in a few tries.
func TestPurgedStretchUnderADeadline(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := stretch(t, table, 1500)
	var stop atomic.Pointer[context.CancelFunc]
	n := countReads(t, table, func(n int64) {
		if n > 6 {
			(*stop.Load())()
		}
	})
	for try := 1; ; try++ {
		ctx, cancel := context.WithCancel(t.Context())
		stop.Store(&cancel)
		n.Store(0)
		page, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 10})
		ended := ctx.Err() != nil
		cancel()
		if err == nil {
			if len(page) != 1 || page[0].Run != "run" {
				t.Fatalf("got %v, want the event behind the stretch", page)
			}
			if try == 1 {
				t.Error("no context ended within the stretch")
			}
			return
		}
		if !ended || try == 20 {
			t.Fatalf("try %d: %v", try, err)
		}
		fails(t, err, runstore.ErrUnavailable, context.Canceled, runstore.NotApplied)
	}
}

// A failover that loses a purge brings events back into the feed, also for a handle that has read past them.
func TestPurgedStretchAfterALostPurge(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, heir, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, s, "gone")
	commit(t, s, appending(lease, "1", "2", "3"))
	hold(t, s, "run")
	commit(t, s, signal("run", "behind them"))
	for _, id := range []runstore.RunID{"gone", "run"} {
		if err := bigtable.Publish(t.Context(), s, id); err != nil {
			t.Fatal(err)
		}
	}
	survived := snapshot(t, tbl)
	purge(t, s, lease)
	page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Run != "run" {
		t.Fatalf("after the purge: got %v, %v, want the event of the other run", page, err)
	}
	survived.rollBack(t, tbl)
	if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	hold(t, s, "new") // it learns the epoch
	if all := whole(t, s, 0, 10, nil); len(all) != 4 {
		t.Errorf("after a failover that lost the purge the feed has %d events, want 4", len(all))
	}
}
