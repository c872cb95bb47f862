package tapeserver_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// unsure is a store that makes commits and, while it is lossy, does not say so.
type unsure struct {
	quiet
	lossy *atomic.Bool
}

func (s unsure) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c, err := s.quiet.Commit(ctx, b)
	if s.lossy.Load() {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome}
	}
	return c, err
}

// The server that has registered the first reaction matches it at once, though it knows of no other and the registration's
// outcome is unknown.
func TestTheFirstReactionIsMatchedAtOnce(t *testing.T) {
	t.Parallel()
	for _, lossy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { // a bubble of fake time
			store := unsure{quiet{memory.New(nil).Open()}, new(atomic.Bool)}
			c, stop := start(t, store, nil)
			begin(t, c, "i")
			time.Sleep(time.Minute)
			store.lossy.Store(lossy)
			reaction := &tapepb.Reaction{ReactionId: "r", SubjectPattern: "/**", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK}
			if _, err := c.RegisterReaction(t.Context(), reaction); lossy != (status.Code(err) == codes.Unknown) {
				t.Errorf("RegisterReaction = %v; its outcome is to be unknown: %t", err, lossy)
			}
			store.lossy.Store(false)
			time.Sleep(time.Second) // a tenth of the time after which it is found without a registration
			r, err := c.ListTasks(t.Context(), &tapepb.ListTasksRequest{ReactionId: "r"})
			if err != nil || len(r.GetTasks()) != 1 {
				t.Errorf("a second later the tasks are %v, %v; want one", r, err)
			}
			if err := stop(); err != nil {
				t.Errorf("Serve = %v", err)
			}
		})
	}
}
