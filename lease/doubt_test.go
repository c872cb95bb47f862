package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// A renewal is refused, the next one succeeds, and then the store freezes. The refusal is over, so the
// holder has its grace.
func TestGraceAfterARefusalThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			switch n {
			case 1:
				return runstore.Renewed{}, &runstore.OpError{Op: "renew lease", Run: run, Err: runstore.ErrInvalid}
			case 3:
				elapse(lease.DefaultTTL) // also after its context has ended
			}
			return next()
		}
		err := f.keeper(&lease.Options{Grace: time.Minute}).Do(t.Context(), request(), wait(2*time.Minute))
		if err != nil || len(f.renewed()) < 4 {
			t.Errorf("got %v after %d renewals, want the lease to the end", err, len(f.renewed()))
		}
	})
}

// The work returns while a renewal with a checkpoint is in flight. The reply arrives before the lease has
// ended: the checkpoint is known to be applied.
func TestCheckpointAnsweredAfterTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		applied := make(chan struct{})
		f.renew = func(_ context.Context, n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			renewed, err := next()
			if n == 1 {
				close(applied)
				elapse(100 * time.Millisecond)
			}
			return renewed, err
		}
		var outcome <-chan error
		err := f.keeper(nil).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
			outcome = held.Checkpoint(writes("step"))
			<-applied
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-outcome; err != nil {
			t.Errorf("the checkpoint that was applied got %v", err)
		}
		f.wantKinds("step")
	})
}

// handOff grants the lease under f to the successor whose request is stored, as a holder does. ok is false
// if there is no request.
func (f *fixture) handOff(from runstore.Fence) (granted runstore.Granted, ok bool) {
	f.t.Helper()
	records, err := f.RunStore.ReadRecords(context.Background(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
	if err != nil || len(records) == 0 {
		return granted, false
	}
	var stored struct{ Grant runstore.GrantID }
	if err := json.Unmarshal(records[0].Value, &stored); err != nil {
		f.t.Error(err)
	}
	req := successorRequest()
	req.Grant, req.TTL, req.Guards = stored.Grant, lease.DefaultTTL, []runstore.Guard{from}
	req.Writes.Delete(lease.HandoffKey)
	if granted, err = f.RunStore.AcquireLease(context.Background(), req); err != nil {
		f.t.Error(err)
	}
	return granted, true
}

// A successor withdraws its request, and in that moment the holder grants the lease to it. The lease that
// it does not use is free for others, and not only once it expires.
func TestWithdrawnRequestIsGrantedInThatMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		holder := f.grant(agent)
		commits := 0
		store := &lateCommits{f, func(next func() (runstore.Committed, error)) (runstore.Committed, error) {
			if commits++; commits == 2 { // the first stores the request, the second deletes it
				f.handOff(holder.Lease.Fence())
			}
			return next()
		}}
		successor, err := lease.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := successor.RequestHandoff(ctx, successorRequest()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the successor got %v, want the deadline", err)
		}
		if token := f.head().Token; token != 2 {
			t.Errorf("the last token is %v, want 2: the grant to the successor", token)
		}
		f.wantFree()
	})
}

// A successor is granted a lease that has ended before it knows, and another holder has the run. The
// request goes to that holder at once, under its new id.
func TestRequestUnderANewIDIsStoredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		holder, passed := f.grant(agent), false
		f.acquire = func(_ context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if passed {
				return next()
			}
			granted, ok := f.handOff(holder.Lease.Fence())
			if ok {
				passed = true
				if _, err := f.RunStore.ReleaseLease(context.Background(), runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
					t.Error(err)
				}
				f.grant(runstore.LeaseSpec{Owner: "agent-c", TTL: lease.DefaultTTL})
			}
			return next()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := f.keeper(nil).RequestHandoff(ctx, successorRequest())
			ended <- err
		}()
		elapse(lease.DefaultTTL / 10) // a request is repeated after a third of its TTL
		if owner := f.head().Holder.Owner; owner != "agent-c" {
			t.Errorf("the holder is %q, want agent-c", owner)
		}
		records, err := f.ReadRecords(t.Context(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
		if err != nil || len(records) != 1 {
			t.Errorf("the later holder finds %d requests, %v; want that of the successor", len(records), err)
		}
		cancel()
		<-ended
	})
}
