package spanner_test

import (
	"context"
	"path"
	"reflect"
	"sync"
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// strongReads returns the strong reads of a store that holds the run "run" with the record "record"
// in the index "queue".
func strongReads(ctx context.Context, s *spanner.Store) map[string]func() (any, error) {
	scan := func(index runstore.IndexName, newest, heads bool) func() (any, error) {
		return func() (any, error) {
			return s.ScanIndex(ctx, runstore.IndexQuery{Index: index, Newest: newest, Heads: heads, Until: runstore.EndOfTime, Limit: 10})
		}
	}
	return map[string]func() (any, error){
		"run": func() (any, error) { return s.GetRun(ctx, "run") },
		"records by key": func() (any, error) {
			return s.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
		},
		"page of records":       func() (any, error) { return s.ReadRecords(ctx, "run", runstore.RecordQuery{Limit: 10}) },
		"journal":               func() (any, error) { return s.ReadJournal(ctx, "run", 1, 10) },
		"index":                 scan("queue", false, false),
		"index with heads":      scan("queue", false, true),
		"newest of an index":    scan("queue", true, false),
		"index of the runs":     scan(runstore.IndexRuns, false, true),
		"index of the runnable": scan(runstore.IndexRunnable, false, true),
		"feed":                  func() (any, error) { return s.ReadFeed(ctx, runstore.FeedQuery{Limit: 10}) },
		"newest of the feed":    func() (any, error) { return s.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 10}) },
		"terms":                 func() (any, error) { return s.ReadTerms(ctx, "run") },
		"epochs":                func() (any, error) { return s.Epochs(ctx) },
	}
}

// streamCut cuts one of the streams that a handle opens for operations.
type streamCut struct {
	mu    sync.Mutex
	until int // number of the stream to cut, counted down; 0: none
}

// arm cuts the nth stream from now on.
func (c *streamCut) arm(nth int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = nth
}

// disarm spares the streams from now on and reports whether one was cut.
func (c *streamCut) disarm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut := c.until == 0
	c.until = 0
	return cut
}

func (c *streamCut) through(o *spanner.Options) {
	o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, cc, method, opts...)
			if name := path.Base(method); err != nil || serving.Operation(ctx) == "" || name != sql && name != keys {
				return stream, err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.until > 0 {
				if c.until--; c.until == 0 {
					return &cutStream{ClientStream: stream}, nil
				}
			}
			return stream, nil
		}))
}

// cutStream is a stream that fails after its first message, as at the end of the attempt timeout.
// The message carries a resume token, as the service's do: the client library then passes its rows
// on at once. The emulator sends none, and the library would keep the rows until the end of the
// stream.
type cutStream struct {
	grpc.ClientStream
	received bool
}

func (s *cutStream) RecvMsg(m any) error {
	if s.received {
		return status.Error(codes.DeadlineExceeded, "the test cuts the stream")
	}
	s.received = true
	err := s.ClientStream.RecvMsg(m)
	if part, ok := m.(*spannerpb.PartialResultSet); ok && err == nil {
		part.ResumeToken = []byte("token")
	}
	return err
}

// TestReadsBeginAnew checks that a read that fails after it has returned rows begins anew: the
// caller gets each row once.
func TestReadsBeginAnew(t *testing.T) {
	t.Parallel()
	var c streamCut
	s := open(t, newDatabase(t, newest), patient, c.through)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	b := appending(hold(t, s, "run"), "one", "two")
	b.Put("record", []byte("value"), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	for name, read := range strongReads(t.Context(), s) {
		want, err := read()
		if v := reflect.ValueOf(want); err != nil || v.Kind() == reflect.Slice && v.Len() == 0 {
			t.Fatalf("%s: got %+v, %v, want something that could be read twice", name, want, err)
		}
		for nth := 1; ; nth++ {
			c.arm(nth)
			got, err := read()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, stream %d cut: got %+v, %v, want %+v", name, nth, got, err, want)
			}
			if !c.disarm() { // it opens fewer
				if nth == 1 {
					t.Errorf("%s: no stream was cut", name)
				}
				break
			}
		}
	}
}
