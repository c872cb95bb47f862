package tapeserver_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
)

// feedOutage is a store whose feed cannot be read while down is true.
type feedOutage struct {
	quiet
	down *atomic.Bool
}

func (s feedOutage) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if s.down.Load() {
		return nil, &runstore.OpError{Op: "read feed", Err: runstore.ErrUnavailable}
	}
	return s.quiet.ReadFeed(ctx, q)
}

// TestAnOutageEndsFeedsWithAPosition checks that the status which ends a feed during an outage of the store
// has the position of the last entry that was sent.
func TestAnOutageEndsFeedsWithAPosition(t *testing.T) {
	t.Parallel()
	for name, subscribe := range feeds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := feedOutage{quiet{memory.New(nil).Open()}, new(atomic.Bool)}
				c, _ := start(t, store, &tapeserver.Options{NoMatcher: true, Logger: quietly})
				id := begin(t, c, "i").GetRunId()
				decide(t, c, id, 0)
				stream := opened(t)(subscribe(t.Context(), c, "/tape/**", 0))
				last := received(t, stream, 2)[1].GetGlobalSeq()
				store.down.Store(true)
				_, err := stream.Recv()
				wantStatus(t, name, err, codes.Unavailable, fmt.Sprintf("resume from global_seq %d", last))
				if got := infoOf(t, err).GetMetadata()["resume_from_global_seq"]; got != fmt.Sprint(last) {
					t.Errorf("%s: resume from %q, want %d", name, got, last)
				}
			})
		})
	}
}
