package takeover_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// losing is a store that applies the first acquire, and loses the replies to the first two.
type losing struct {
	runstore.RunStore
	mu   sync.Mutex
	sent []time.Time
}

func (l *losing) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	l.mu.Lock()
	l.sent = append(l.sent, time.Now())
	n := len(l.sent)
	l.mu.Unlock()
	if n == 2 {
		return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: req.Run, Err: runstore.ErrUnknownOutcome}
	}
	granted, err := l.RunStore.AcquireLease(ctx, req)
	if n == 1 && err == nil {
		<-time.After(4 * time.Second) // longer than the margin of the trust
		return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: req.Run, Err: runstore.ErrUnknownOutcome}
	}
	return granted, err
}

// A claim is repeated twice, because replies are lost. Its first request may be the one that was granted,
// so the trust in the lease counts from there.
func TestTrustInARepeatedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &losing{RunStore: memory.New(nil).Open()}
		create(t, store, "run", nil)
		trusted := make(chan time.Time, 1)
		stop := run(t, func(_ context.Context, held *lease.Held, _ runstore.Run) error {
			until, ok := held.Trusted()
			if !ok {
				t.Error("the lease is not trusted")
			}
			trusted <- until
			held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
			return nil
		}, worker(t, store, "worker", takeover.Options{}))
		until := <-trusted
		stop()
		if len(store.sent) != 3 {
			t.Fatalf("%d requests, want 3", len(store.sent))
		}
		if expiry := store.sent[0].Add(lease.DefaultTTL); until.After(expiry) {
			t.Errorf("the lease is trusted for %v beyond its expiry", until.Sub(expiry))
		}
	})
}

// Work succeeds after many failures. They no longer count: a later failure is repeated soon.
func TestSuccessEndsTheCountOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		create(t, store, "run", nil)
		const failures = 6
		began := make(chan time.Time)
		n := 0
		stop := run(t, func(ctx context.Context, _ *lease.Held, _ runstore.Run) error {
			select {
			case began <- time.Now():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if n++; n == failures+1 {
				return nil
			}
			return errors.New("a fault of the test")
		}, worker(t, store, "worker", takeover.Options{MaxBackoff: time.Hour}))
		var at []time.Time
		for range failures + 3 {
			at = append(at, <-began)
		}
		stop()
		before, after := at[failures].Sub(at[failures-1]), at[failures+2].Sub(at[failures+1])
		if after > before/4 {
			t.Errorf("after a success a failure is repeated after %v, and the failure before it after %v", after, before)
		}
	})
}
