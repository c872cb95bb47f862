package bigtable_test

import (
	"context"
	"errors"
	"path"
	"slices"
	"testing"

	"google.golang.org/grpc"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// whilePaused runs an operation, named as the adapter names it, with its reads held from
// the n-th on, counted from 0, while between happens. It reports whether the operation
// made so many.
func whilePaused(t testing.TB, table bigtableemulator.TableName, op string, n int, do, between func()) bool {
	t.Helper()
	seen := 0
	held := server(t).Hold(0, func(c bigtableemulator.Call) bool {
		if c.Table != table.String() || c.Method != reads || !slices.Contains(c.Metadata.Get(serving.Header), op) {
			return false
		}
		seen++
		return seen > n
	})
	defer held.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		do()
	}()
	paused := held.Await(ctx, 1) == nil
	if paused {
		between()
	}
	held.Stop()
	<-done
	return paused
}

// meddle has f called for each conditional mutation that a handle sends for an
// operation, with what sends it.
func meddle(f func(ctx context.Context, send func() error) error) func(*bigtable.Options) {
	return func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				send := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
				if path.Base(method) != swaps || serving.Operation(ctx) == "" {
					return send()
				}
				return f(ctx, send)
			}))
	}
}

// A reader of the feed that is paused between any two requests of one read, while the
// feed grows, its epoch is raised and it grows on above that, misses nothing and never
// goes back: neither in that read nor in those that resume from it.
func TestReaderIsPausedInsideARead(t *testing.T) {
	t.Parallel()
	for _, start := range []struct {
		name string
		of   func(all []runstore.FeedEvent) runstore.Position
	}{
		{"at the beginning", func([]runstore.FeedEvent) runstore.Position { return 0 }},
		{"within a page of the log", func(all []runstore.FeedEvent) runstore.Position { return all[2].Position }},
		{"at the end", func(all []runstore.FeedEvent) runstore.Position { return all[len(all)-1].Position }},
		{"behind the end", func(all []runstore.FeedEvent) runstore.Position { return all[len(all)-1].Position + 1 }},
		{"far behind the end", func(all []runstore.FeedEvent) runstore.Position { return all[len(all)-1].Position + 5000 }},
	} {
		t.Run(start.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			for readerIsPaused(t, n, start.of) {
				n++
			}
			if n == 0 {
				t.Error("a read of the feed makes no request")
			}
		})
	}
}

// readerIsPaused pauses a reader before its n-th request, and reports whether it makes
// so many.
func readerIsPaused(t *testing.T, n int, start func([]runstore.FeedEvent) runstore.Position) bool {
	t.Helper()
	table := newTable(t)
	s, other, reader := openBare(t, table), openBare(t, table), openBare(t, table)
	lease := hold(t, s, "run")
	sequence := func(s *bigtable.Store, b runstore.Batch) {
		commit(t, s, b)
		if err := bigtable.Publish(t.Context(), s, b.Run()); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // a segment each
		sequence(s, appending(lease, "before", "before"))
	}
	after := start(whole(t, s, 0, 100, nil))
	var page []runstore.FeedEvent
	var err error
	paused := whilePaused(t, table, "read feed", n, func() { page, err = reader.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 100}) }, func() {
		sequence(s, appending(lease, "between", "between"))
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		sequence(other, appending(takeOver(t, other, "run"), "after", "after"))
	})
	if !paused {
		return false
	}
	all := whole(t, s, 0, 100, nil)
	if len(all) != 10 {
		t.Fatalf("the feed has %d events, want 10", len(all))
	}
	behind := after > all[5].Position // of what there was, and so it may say so
	if err != nil && !(behind && errors.Is(err, runstore.ErrStoreBehind)) {
		t.Errorf("paused at request %d: %v", n, err)
	}
	got := page
	last := after
	if len(page) > 0 {
		last = page[len(page)-1].Position
	}
	for {
		more, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{After: last, Limit: 2})
		if err != nil {
			t.Fatalf("paused at request %d, resumed at %d: %v", n, last, err)
		}
		if len(more) == 0 {
			break
		}
		got, last = append(got, more...), more[len(more)-1].Position
	}
	want := slices.DeleteFunc(all, func(e runstore.FeedEvent) bool { return e.Position <= after })
	same := func(a, b runstore.FeedEvent) bool {
		return a.Position == b.Position && a.Run == b.Run && a.Seq == b.Seq && string(a.Data) == string(b.Data)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("paused at request %d behind %d: got\n%v, want\n%v", n, after, places(got), places(want))
	}
	return true
}

// places are the events' positions and seqs.
func places(events []runstore.FeedEvent) (all [][2]int64) {
	for _, e := range events {
		all = append(all, [2]int64{int64(e.Position), int64(e.Seq)})
	}
	return all
}
