package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

func successorRequest() runstore.AcquireRequest {
	return runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", Reactor: "agent"}}
}

// span is when a piece of work ran.
type span struct {
	began, ended time.Time
	fence        runstore.Fence
}

// handover is a holder and a successor on one run.
type handover struct {
	*fixture
	held      chan struct{} // closed when the holder's work runs
	done      sync.WaitGroup
	old, next span
	oldErr    error
	granted   lease.Granted
	nextErr   error
}

// begin starts a holder whose work goes on for drain after the end of its context.
func (f *fixture) begin(opts *lease.Options, drain time.Duration, last func(held *lease.Held) error) *handover {
	h := &handover{fixture: f, held: make(chan struct{})}
	keeper := f.keeper(opts)
	h.done.Go(func() {
		h.oldErr = keeper.Do(f.t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
			h.old.began, h.old.fence = time.Now(), held.Fence()
			close(h.held)
			<-ctx.Done()
			elapse(drain)
			h.old.ended = time.Now()
			if last != nil {
				return last(held)
			}
			return context.Cause(ctx)
		})
	})
	<-h.held
	return h
}

// succeed requests the handoff, works for a second and waits until both sides have ended. working,
// if not nil, is called when the successor's work begins.
func (h *handover) succeed(ctx context.Context, working func()) {
	keeper := h.keeper(nil)
	h.done.Go(func() {
		if h.granted, h.nextErr = keeper.RequestHandoff(ctx, successorRequest()); h.nextErr != nil {
			return
		}
		h.nextErr = keeper.Hold(ctx, h.granted, func(_ context.Context, held *lease.Held) error {
			h.next = span{began: time.Now(), fence: held.Fence()}
			if working != nil {
				working()
			}
			elapse(time.Second)
			h.next.ended = time.Now()
			return nil
		})
	})
	h.done.Wait()
}

// wantHandedOff checks that the lease passed from one to the other, and returns the holder's result.
func (h *handover) wantHandedOff(mode lease.HandoffMode) *lease.HandedOffError {
	h.t.Helper()
	var handed *lease.HandedOffError
	if !errors.As(h.oldErr, &handed) || !errors.Is(h.oldErr, lease.ErrHandedOff) || errors.Is(h.oldErr, lease.ErrLost) {
		h.t.Fatalf("the holder ended with %v, want a handoff", h.oldErr)
	}
	if h.nextErr != nil {
		h.t.Fatalf("the successor ended with %v", h.nextErr)
	}
	want := lease.HandedOffError{
		Run: run, Token: h.old.fence.Token(), Next: h.old.fence.Token() + 1, Successor: "agent-b", Mode: mode,
		Drain: handed.Drain, Gap: handed.Gap, Overlap: handed.Overlap,
	}
	if *handed != want || h.next.fence.Token() != want.Next {
		h.t.Errorf("the handoff is %+v to token %v, want %+v", *handed, h.next.fence.Token(), want)
	}
	h.wantNoRequest()
	h.wantFree()
	return handed
}

func (f *fixture) wantNoRequest() {
	f.t.Helper()
	records, err := f.ReadRecords(context.Background(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
	if err != nil || len(records) != 0 {
		f.t.Errorf("the run has %d requests for a handoff, %v; want none", len(records), err)
	}
}

func TestGapHandoffEndsTheWorkFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t).begin(&lease.Options{Handoff: lease.Gap}, 3*time.Second, func(held *lease.Held) error {
			var last runstore.Writes
			last.Append("drained", nil)
			held.ReleaseWith(last)
			return nil
		})
		var others sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 20 { // contenders that do not ask the holder
			others.Go(func() {
				if _, err := h.keeper(nil).Acquire(ctx, request()); !errors.Is(err, runstore.ErrLeaseHeld) {
					t.Errorf("a contender got %v", err)
				}
			})
		}
		h.succeed(t.Context(), cancel)
		others.Wait()
		handed := h.wantHandedOff(lease.Gap)
		if handed.Drain != 3*time.Second || handed.Overlap != 0 {
			t.Errorf("drain %v, overlap %v; want 3s and 0", handed.Drain, handed.Overlap)
		}
		if h.next.began.Before(h.old.ended) {
			t.Errorf("the successor began %v before the holder's work had ended", h.old.ended.Sub(h.next.began))
		}
		events, err := h.ReadJournal(t.Context(), run, 1, 10)
		if err != nil || len(events) != 1 || events[0].Token != h.old.fence.Token() || events[0].Owner != "agent-a" {
			t.Errorf("the journal is %v, %v; want the last write of the holder, under its token", events, err)
		}
	})
}

func TestOverlapHandoffFencesTheWorkFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		h := f.begin(&lease.Options{Handoff: lease.Overlap}, time.Minute, func(held *lease.Held) error {
			if _, ok := held.Trusted(); ok {
				t.Error("a lease that was handed off is trusted")
			}
			b := runstore.NewBatch(run, held.Fence())
			b.Append("late", nil)
			_, err := f.Commit(t.Context(), b)
			if !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("a late write got %v, want ErrFenced", err)
			}
			return err
		})
		h.succeed(t.Context(), nil)
		handed := h.wantHandedOff(lease.Overlap)
		if handed.Drain != time.Minute || handed.Overlap != time.Minute || handed.Gap != 0 {
			t.Errorf("drain %v, overlap %v, gap %v; want 1m, 1m, 0", handed.Drain, handed.Overlap, handed.Gap)
		}
		if !h.next.ended.Before(h.old.ended) {
			t.Error("the successor has waited for the holder's work")
		}
	})
}

func TestDrainTimeoutEndsAGapHandoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t).begin(&lease.Options{Handoff: lease.Gap, DrainTimeout: 5 * time.Second}, time.Minute, nil)
		h.succeed(t.Context(), nil)
		if handed := h.wantHandedOff(lease.Overlap); handed.Drain != time.Minute || handed.Overlap != 55*time.Second {
			t.Errorf("drain %v, overlap %v; want 1m and 55s", handed.Drain, handed.Overlap)
		}
	})
}

// A successor whose wake-ups announce the grant has the lease in less than a poll.
func TestHandoffIsAnnounced(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				store := f.shared.Open()
				holder, err := lease.New(store, &lease.Options{Handoff: mode})
				if err != nil {
					t.Fatal(err)
				}
				waiting, err := lease.New(f.shared.Open(), nil)
				if err != nil {
					t.Fatal(err)
				}
				var done sync.WaitGroup
				done.Go(func() { _ = holder.Do(t.Context(), request(), wait(time.Hour)) })
				elapse(time.Minute)
				asked := time.Now()
				granted, err := waiting.RequestHandoff(t.Context(), successorRequest())
				if err != nil || !granted.Sent.IsZero() {
					t.Fatalf("got %+v, %v; want a grant of unknown age", granted, err)
				}
				if took := time.Since(asked); took > 2*time.Second {
					t.Errorf("the handoff took %v", took)
				}
				done.Wait()
			})
		})
	}
}

func TestWithdrawnRequestHandsNothingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t).begin(&lease.Options{Handoff: lease.Gap, DrainTimeout: time.Hour}, time.Minute, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		h.succeed(ctx, nil)
		if !errors.Is(h.nextErr, context.DeadlineExceeded) || !errors.Is(h.nextErr, runstore.ErrLeaseHeld) {
			t.Errorf("the successor got %v, want held, and the deadline", h.nextErr)
		}
		if !errors.Is(h.oldErr, lease.ErrHandoffRequested) || errors.Is(h.oldErr, lease.ErrHandedOff) {
			t.Errorf("the holder got %v, want ErrHandoffRequested", h.oldErr)
		}
		h.wantFree()
		if n := len(h.releases); n != 1 {
			t.Errorf("%d releases, want 1", n)
		}
	})
}

// A lease that was granted while its successor gave up is revoked.
func TestGrantToASuccessorThatGaveUpIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t).begin(&lease.Options{Handoff: lease.Gap}, 0, nil)
		ctx, cancel := context.WithCancel(t.Context())
		h.acquire = func(_ context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			granted, err := next()
			if err == nil && granted.Owner == "agent-b" {
				cancel()
			}
			return granted, err
		}
		h.succeed(ctx, nil)
		if h.nextErr == nil {
			t.Error("the successor worked after its context had ended")
		}
		h.wantFree()
		h.wantFormer(runstore.EndRevoked)
	})
}

// A request that changes between the holder's read and its grant gets what it says then.
func TestRequestChangesBeforeTheGrant(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		for name, change := range map[string]func(b *runstore.Batch){
			"withdrawn": func(b *runstore.Batch) { b.Delete(lease.HandoffKey) },
			"replaced": func(b *runstore.Batch) {
				b.Put(lease.HandoffKey, []byte(`{"owner":"agent-c","grant":"c","ttl":30000000000}`))
			},
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t)
					changed := false
					f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
						if n > 1 && !changed {
							changed = true
							b := runstore.NewBatch(run, runstore.Unguarded("test"))
							change(&b)
							if _, err := f.Commit(ctx, b); err != nil {
								t.Error(err)
							}
						}
						return next()
					}
					f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
					err := f.keeper(&lease.Options{Handoff: mode}).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
						var last runstore.Writes
						last.Append("last", nil)
						held.ReleaseWith(last)
						return wait(time.Minute)(ctx, held)
					})
					var handed *lease.HandedOffError
					switch errors.As(err, &handed); {
					case name == "replaced" && (handed == nil || handed.Successor != "agent-c"):
						t.Errorf("got %v, want a handoff to agent-c", err)
					case name == "withdrawn" && handed != nil:
						t.Errorf("got %v, want no handoff", err)
					case name == "withdrawn":
						f.wantFree()
					}
					if name == "withdrawn" {
						if events, err := f.ReadJournal(t.Context(), run, 1, 10); err != nil || len(events) != 1 {
							t.Errorf("the journal is %v, %v; want the last write of the work, once", events, err)
						}
					}
					f.wantNoRequest()
				})
			})
		}
	}
}

// The grant is repeated under its id when its reply is lost, also if the work meets the refusal of
// its fence before the holder knows of the grant.
func TestLostReplyOfAHandoff(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		for _, applied := range []bool{true, false} {
			t.Run(mode.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t)
					lost := make(chan struct{})
					h := f.begin(&lease.Options{Handoff: mode}, 0, nil)
					f.mu.Lock()
					f.acquire = func(ctx context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
						f.mu.Lock()
						req := f.acquires[len(f.acquires)-1]
						f.mu.Unlock()
						select {
						case <-lost:
							return next()
						default:
						}
						if len(req.Guards) == 0 {
							return next()
						}
						close(lost)
						if applied {
							if _, err := next(); err != nil {
								t.Errorf("the grant: %v", err)
							}
						}
						return runstore.Granted{}, hang(ctx)
					}
					f.mu.Unlock()
					h.succeed(t.Context(), nil)
					h.wantHandedOff(mode)
				})
			})
		}
	}
}

// Work that returns the refusal of its fence, while the reply to the grant is on its way, has not lost
// the lease.
func TestWorkMeetsTheHandoffBeforeItsKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		granted := make(chan struct{})
		keeper := f.keeper(&lease.Options{Handoff: lease.Overlap})
		h := &handover{fixture: f, held: make(chan struct{})}
		h.done.Go(func() {
			h.oldErr = keeper.Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
				h.old.fence = held.Fence()
				close(h.held)
				<-granted
				_, err := f.Commit(t.Context(), func() runstore.Batch {
					b := runstore.NewBatch(run, held.Fence())
					b.Append("late", nil)
					return b
				}())
				return err
			})
		})
		<-h.held
		f.mu.Lock()
		first := true
		f.acquire = func(ctx context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			f.mu.Lock()
			handing := first && len(f.acquires[len(f.acquires)-1].Guards) > 0
			first = first && !handing
			f.mu.Unlock()
			if !handing {
				return next()
			}
			_, _ = next()
			close(granted)
			return runstore.Granted{}, hang(ctx)
		}
		f.mu.Unlock()
		h.succeed(t.Context(), nil)
		h.wantHandedOff(lease.Overlap)
	})
}

// The reply to a grant counts if it arrives in the moment in which the work returns.
func TestWorkReturnsWithTheReplyToTheGrant(t *testing.T) {
	for range 50 { // each way has the chance of 1/2
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			granted := make(chan struct{})
			f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
				if n == 2 {
					defer elapse(time.Second)
					defer close(granted)
				}
				return next()
			}
			f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
			err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), func(context.Context, *lease.Held) error {
				<-granted
				elapse(time.Second)
				return nil
			})
			if !errors.Is(err, lease.ErrHandedOff) || errors.Is(err, lease.ErrLost) {
				t.Fatalf("got %v, want a handoff", err)
			}
		})
	}
}

// While a grant to a successor is in flight the holder does not trust its lease: the store may have
// made the grant. A grant that was not made leaves it trusted.
func TestLeaseIsNotTrustedWhileItIsHandedOff(t *testing.T) {
	for _, withdrawn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			var held *lease.Held
			working := make(chan struct{})
			f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
				if n == 1 {
					return next()
				}
				if withdrawn {
					b := runstore.NewBatch(run, runstore.Unguarded("test"))
					b.Delete(lease.HandoffKey)
					if _, err := f.Commit(ctx, b); err != nil {
						t.Error(err)
					}
				}
				granted, err := next()
				<-working
				if _, ok := held.Trusted(); ok {
					t.Error("the lease is trusted before the reply to the grant has arrived")
				}
				return granted, err
			}
			f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
			_ = f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), func(ctx context.Context, h *lease.Held) error {
				held = h
				close(working)
				_ = wait(25*time.Second)(ctx, h)
				if _, ok := h.Trusted(); ok != withdrawn {
					t.Errorf("withdrawn %v: trusted %v at the end", withdrawn, ok)
				}
				return nil
			})
		})
	}
}

func TestHolderWithoutHandoffKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var done sync.WaitGroup
		done.Go(func() {
			if err := f.keeper(nil).Do(t.Context(), request(), wait(5*time.Minute)); err != nil {
				t.Errorf("the holder: %v", err)
			}
		})
		elapse(time.Second)
		granted, err := f.keeper(nil).RequestHandoff(t.Context(), successorRequest())
		if err != nil || time.Since(f.began) < 5*time.Minute {
			t.Errorf("got %v, %v after %v; want the lease after its release", granted.Lease, err, time.Since(f.began))
		}
		if f.head().Holder.Former != runstore.EndReleased {
			t.Errorf("the former grant was %v, want released", f.head().Holder.Former)
		}
		f.wantNoRequest()
		done.Wait()
	})
}

func TestHandoffInput(t *testing.T) {
	f := newFixture(t)
	guarded, preempting, writing := successorRequest(), successorRequest(), successorRequest()
	guarded.Guards = []runstore.Guard{runstore.AtToken(1)}
	preempting.Preempt = "now"
	writing.Writes.Append("event", nil)
	for name, req := range map[string]runstore.AcquireRequest{"guards": guarded, "preempt": preempting, "writes": writing} {
		var input *runstore.InputError
		if _, err := f.keeper(nil).RequestHandoff(t.Context(), req); !errors.As(err, &input) || !errors.Is(err, runstore.ErrInvalid) || input.Field != "handoff" {
			t.Errorf("%s: got %v, want ErrInvalid for the handoff", name, err)
		}
	}
	if _, err := lease.New(f, &lease.Options{Handoff: 7}); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("an unknown mode: got %v, want ErrInvalid", err)
	}
	bare := struct{ lease.Store }{f}
	if _, err := lease.New(bare, &lease.Options{Handoff: lease.Gap}); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("a store without reads: got %v, want ErrUnsupported", err)
	}
	keeper, err := lease.New(bare, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.RequestHandoff(t.Context(), successorRequest()); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("a request on a store without reads: got %v, want ErrUnsupported", err)
	}
}
