package bigtable

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// ErrStalled is why a write was not sent behind writes without a reply.
var ErrStalled = errStalled

// NewLock returns the function that locks a run of a handle with a retry timeout, for operations that send
// nothing. left is how long the operation may try, unlock ends it with an error.
func NewLock(timeout time.Duration) func(ctx context.Context) (left time.Duration, unlock func(error), err error) {
	s := &engine{opts: Options{RetryTimeout: timeout}, clock: clock{local: localclock.Clock{}}}
	s.runs.all = map[runstore.RunID]*cachedRun{}
	return func(ctx context.Context) (time.Duration, func(error), error) {
		r, t, err := s.lock(ctx, "run")
		if err != nil {
			return 0, nil, err
		}
		return t.Left(), func(err error) { s.unlock(r, err) }, nil
	}
}
