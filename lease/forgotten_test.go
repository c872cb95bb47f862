package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// errForgotten is the error of a request that the store no longer remembers.
var errForgotten = &runstore.OpError{Op: "test", Run: run, Err: runstore.ErrUnknownOutcome, Cause: runstore.ErrForgotten}

// A checkpoint that the store no longer remembers is not repeated, because it could be applied again. The
// lease goes on, and so do later checkpoints.
func TestForgottenCheckpointIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			r, err := next()
			if n == 1 {
				return runstore.Renewed{}, errForgotten
			}
			return r, err
		}
		err := f.keeper(nil).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			if err := <-held.Checkpoint(writes("first")); runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, runstore.ErrForgotten) {
				t.Errorf("the first checkpoint: %v, want an unknown outcome", err)
			}
			return <-held.Checkpoint(writes("second"))
		})
		if err != nil {
			t.Fatal(err)
		}
		f.wantKinds("first", "second")
	})
}

// An acquisition with writes that the store no longer remembers is not repeated, because the writes could be
// applied again.
func TestForgottenAcquisitionIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		sent := 0
		f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if sent = n; n > 1 {
				return next()
			}
			if _, err := next(); err != nil {
				t.Error(err)
			}
			return runstore.Granted{}, errForgotten
		}
		req := request()
		req.Writes = writes("begin")
		if _, err := f.keeper(nil).Acquire(t.Context(), req); !errors.Is(err, runstore.ErrForgotten) || sent != 1 {
			t.Errorf("got %v after %d requests, want an unknown outcome after one", err, sent)
		}
	})
}

// The last writes of the work, which a handoff stores before the grant, are not repeated if the store no longer
// remembers them: they could be applied again.
func TestForgottenLastWritesAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		after := 0 // renewals after the one with the last writes
		forgotten := false
		f.renew = func(ctx context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			if forgotten {
				after++
			}
			r, err := next()
			if events, failed := f.ReadJournal(ctx, run, 1, 10); failed != nil {
				t.Error(failed)
			} else if len(events) == 1 && !forgotten {
				forgotten = true
				return runstore.Renewed{}, errForgotten
			}
			return r, err
		}
		f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
		err := f.keeper(&lease.Options{Handoff: lease.Gap}).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			var last runstore.Writes
			last.Append("last", nil)
			held.ReleaseWith(last)
			return wait(time.Minute)(ctx, held)
		})
		if !errors.Is(err, runstore.ErrForgotten) || !forgotten || after != 0 {
			t.Errorf("got %v, with %d renewals after it, want an unknown outcome and none", err, after)
		}
	})
}
