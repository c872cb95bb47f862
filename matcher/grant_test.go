package matcher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A replica that is granted a shard with a lost reply, and does not reach the store with the repeat, drives the shard
// once it does. It does not wait for the expiry of the grant.
func TestGrantWithALostReplyDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(reaction("r1", "a", 1))
		w.enter("a", 1)
		began, requests := time.Now(), 0
		m := w.start("one", func(ctx context.Context, op string, do func(context.Context) error) error {
			if op != "acquire" {
				return do(ctx)
			}
			switch requests++; requests {
			case 1:
				if err := do(ctx); err != nil {
					t.Error(err)
				}
				return &runstore.OpError{Op: op, Err: runstore.ErrUnknownOutcome}
			case 2:
				return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable}
			}
			return do(ctx)
		})
		defer m.stop()
		w.await("r1", 1)
		if took := time.Since(began); took > ttl/2 { // on the clock of the bubble
			t.Errorf("the first task came after %v", took)
		}
	})
}
