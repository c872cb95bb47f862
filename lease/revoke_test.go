package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// wantFormer grants the lease, and checks what the new holder learns of the last one.
func (f *fixture) wantFormer(want runstore.GrantEnd) {
	f.t.Helper()
	granted, err := f.RunStore.AcquireLease(context.Background(), runstore.AcquireRequest{
		Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute},
	})
	if err != nil || granted.Former != want {
		f.t.Errorf("the next holder reads %v, %v; want %v", granted.Former, err, want)
	}
}

// The next holder reads that the lease was released only if the work returned and did not abandon it.
// The holder before has died in each case, so its work is unfinished.
func TestWhatTheNextHolderLearns(t *testing.T) {
	ended := func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}
	never := func(context.Context, *lease.Held) error { panic("the work ran") }
	for name, c := range map[string]struct {
		want runstore.GrantEnd
		hold func(f *fixture) error
	}{
		"the work returns": {runstore.EndReleased, func(f *fixture) error {
			return f.keeper(nil).Hold(context.Background(), f.grant(agent), wait(time.Second))
		}},
		"the context has ended before the work": {runstore.EndRevoked, func(f *fixture) error {
			return f.keeper(nil).Hold(ended(), f.grant(agent), never)
		}},
		"the lease cannot be renewed before the work": {runstore.EndRevoked, func(f *fixture) error {
			f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				return runstore.Renewed{}, unavailable()
			}
			granted := f.grant(agent)
			granted.Sent = time.Time{}
			return f.keeper(nil).Hold(context.Background(), granted, never)
		}},
		"the work abandons the lease": {runstore.EndRevoked, func(f *fixture) error {
			return f.keeper(nil).Hold(context.Background(), f.grant(agent), func(_ context.Context, held *lease.Held) error {
				var last runstore.Writes
				last.Append("half-made", nil)
				held.ReleaseWith(last)
				held.Abandon()
				return nil
			})
		}},
		"the work panics": {runstore.EndRevoked, func(f *fixture) error {
			defer func() { _ = recover() }()
			return f.keeper(nil).Hold(context.Background(), f.grant(agent), func(context.Context, *lease.Held) error { panic("boom") })
		}},
		"the lease is no longer trusted": {runstore.EndRevoked, func(f *fixture) error {
			f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				return runstore.Renewed{}, unavailable()
			}
			err := f.keeper(nil).Hold(context.Background(), f.grant(agent), wait(time.Hour))
			if !errors.Is(err, lease.ErrExpired) {
				f.t.Errorf("got %v, want ErrExpired", err)
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				// The holder before died: its work is unfinished.
				if _, err := f.RunStore.AcquireLease(t.Context(), runstore.AcquireRequest{
					Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "dead", TTL: time.Second},
				}); err != nil {
					t.Fatal(err)
				}
				elapse(2 * time.Second)
				_ = c.hold(f)
				f.wantFree()
				if head := f.head(); head.LastSeq != 0 {
					t.Errorf("the run has %d events, want none", head.LastSeq)
				}
				f.wantFormer(c.want)
			})
		})
	}
}

// commits is a store whose commits a test replaces.
type commits struct {
	*faulty
	calls  atomic.Int32
	commit func(n int, next func() (runstore.Committed, error)) (runstore.Committed, error)
}

func (c *commits) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return c.commit(int(c.calls.Add(1)), func() (runstore.Committed, error) { return c.faulty.Commit(ctx, b) })
}

// A revocation is repeated until its outcome is known. It never ends the grant of a later holder.
func TestRevocationIsRepeated(t *testing.T) {
	for name, taken := range map[string]bool{"lost replies": false, "a later holder": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				store := &commits{faulty: f.faulty}
				store.commit = func(n int, next func() (runstore.Committed, error)) (runstore.Committed, error) {
					switch {
					case n == 1:
						return runstore.Committed{}, unavailable()
					case n == 2:
						_, _ = next()
						if taken {
							f.grant(runstore.LeaseSpec{Owner: "later", TTL: time.Minute})
						}
						return runstore.Committed{}, &runstore.OpError{Op: "commit", Run: run, Err: runstore.ErrUnknownOutcome}
					default:
						return next()
					}
				}
				keeper, err := lease.New(store, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				stop := errors.New("shutting down")
				cancel(stop)
				var failed *lease.ReleaseError
				err = keeper.Hold(ctx, f.grant(agent), wait(time.Second))
				if !errors.Is(err, stop) || errors.As(err, &failed) || store.calls.Load() != 3 {
					t.Errorf("got %v after %d commits, want the context's cause after 3", err, store.calls.Load())
				}
				if h := f.head().Holder; (h.Owner == "later") != taken {
					t.Errorf("the holder is %+v", h)
				}
			})
		})
	}
}

// TestFailedRevocationBeforeTheWork checks that a holder whose context ends before the work learns that its
// lease may still be live.
func TestFailedRevocationBeforeTheWork(t *testing.T) {
	for name, after := range map[string]time.Duration{"ended already": 0, "ends during the first renewal": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.renew = func(context.Context, int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					return runstore.Renewed{}, unavailable()
				}
				store := &commits{faulty: f.faulty}
				store.commit = func(int, func() (runstore.Committed, error)) (runstore.Committed, error) {
					return runstore.Committed{}, unavailable()
				}
				keeper, err := lease.New(store, nil)
				if err != nil {
					t.Fatal(err)
				}
				granted := f.grant(agent)
				granted.Sent = time.Time{} // so that the lease is renewed before the work
				stop := errors.New("shutting down")
				ctx, cancel := context.WithTimeoutCause(t.Context(), after, stop)
				defer cancel()
				var failed *lease.ReleaseError
				err = keeper.Hold(ctx, granted, wait(time.Second))
				if !errors.Is(err, stop) || !errors.As(err, &failed) || !errors.Is(err, runstore.ErrUnavailable) {
					t.Errorf("got %v, want the context's cause and a ReleaseError", err)
				}
			})
		})
	}
}

// leases is a store without the methods of a RunStore that a Keeper can do without.
type leases struct{ lease.Store }

// Where a keeper cannot revoke a lease, the lease expires.
func TestStoreWithoutCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		keeper, err := lease.New(leases{f.faulty}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := keeper.Hold(ctx, f.grant(agent), wait(time.Second)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's cause", err)
		}
		if h := f.head().Holder; h.Token != 1 || len(f.releases) != 0 {
			t.Errorf("the holder is %+v after %d releases, want the lease left alone", h, len(f.releases))
		}
		elapse(agent.TTL)
		f.wantFormer(runstore.EndExpired)
	})
}

// Work that panics while a successor waits leaves a lease that the successor finds revoked.
func TestPanicHandsNothingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		held := make(chan struct{})
		keeper, next := f.keeper(&lease.Options{Handoff: lease.Gap}), f.keeper(nil)
		go func() {
			defer func() { _ = recover() }()
			_ = keeper.Do(t.Context(), request(), func(ctx context.Context, _ *lease.Held) error {
				close(held)
				<-ctx.Done()
				panic("boom")
			})
		}()
		<-held
		granted, err := next.RequestHandoff(t.Context(), successorRequest())
		if err != nil || granted.Lease.Token != 2 {
			t.Fatalf("got %+v, %v; want token 2", granted.Lease, err)
		}
		if got := f.head().Holder.Former; got != runstore.EndRevoked {
			t.Errorf("the successor reads %v, want revoked", got)
		}
		f.wantNoRequest()
	})
}

// abandoning is a store whose read of that number makes the holder abandon its lease.
type abandoning struct {
	*faulty
	at    int32
	reads atomic.Int32
	held  atomic.Pointer[lease.Held]
}

func (s *abandoning) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	records, err := s.faulty.ReadRecords(ctx, id, q)
	if held := s.held.Load(); held != nil && len(records) > 0 && s.reads.Add(1) == s.at {
		held.Abandon()
	}
	return records, err
}

// An abandoned lease is not handed off while its work still runs: the successor has it after the work,
// and reads that it was revoked. The work's last writes are not applied.
func TestAbandonedLeaseIsNotHandedOff(t *testing.T) {
	for name, c := range map[string]struct {
		mode lease.HandoffMode
		at   int32 // the read of the request at which the lease is abandoned; 0 is before the request
	}{
		"gap": {lease.Gap, 0}, "overlap": {lease.Overlap, 0},
		"overlap, while the request is looked for": {lease.Overlap, 1}, "overlap, right before the grant": {lease.Overlap, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				store := &abandoning{faulty: f.faulty, at: c.at}
				holder, err := lease.New(store, &lease.Options{Handoff: c.mode, DrainTimeout: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				working, ended := make(chan struct{}), make(chan error, 1)
				var returned time.Time
				go func() {
					ended <- holder.Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
						if store.held.Store(held); c.at == 0 {
							held.Abandon()
						}
						close(working)
						elapse(2 * time.Minute)
						held.ReleaseWith(writes("half-made"))
						returned = time.Now()
						return nil
					})
				}()
				<-working
				elapse(5 * time.Second)
				granted, err := f.keeper(nil).RequestHandoff(t.Context(), successorRequest())
				got := time.Now()
				if err != nil || granted.Lease.Token != 2 {
					t.Fatalf("got %+v, %v; want token 2", granted.Lease, err)
				}
				if former := f.head().Holder.Former; former != runstore.EndRevoked {
					t.Errorf("the successor reads %v, want revoked", former)
				}
				if err := <-ended; err != nil {
					t.Errorf("the holder ended with %v, want no error", err)
				}
				if got.Before(returned) {
					t.Errorf("the lease was granted %v before the work returned", returned.Sub(got))
				}
				f.wantKinds()
				f.wantNoRequest()
			})
		})
	}
}

// A grant that was under way when the lease was abandoned is repeated: the store may have made it.
func TestLeaseIsAbandonedDuringItsGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var abandoned *lease.Held
		working := make(chan struct{})
		f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			granted, err := next()
			if n != 2 {
				return granted, err
			}
			<-working
			abandoned.Abandon()
			return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: run, Err: runstore.ErrUnknownOutcome}
		}
		f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
		err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			abandoned = held
			close(working)
			return wait(time.Minute)(ctx, held)
		})
		if !errors.Is(err, lease.ErrHandedOff) || errors.Is(err, lease.ErrLost) {
			t.Errorf("got %v, want a handoff", err)
		}
		if h := f.head().Holder; h.Owner != "agent-b" || h.Former != runstore.EndHandedOff {
			t.Errorf("the holder is %+v, want the successor after a handoff", h)
		}
	})
}
