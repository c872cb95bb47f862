package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// A successor that gives up leaves the request of a later one as it is.
func TestRequestOfALaterSuccessorIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.grant(agent) // its holder hands nothing off
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		later := `{"owner":"agent-c","grant":"c","ttl":30000000000}`
		go func() {
			elapse(2 * time.Second) // the first successor repeats its request after 10 s
			f.putRequest(later)
		}()
		if _, err := f.keeper(nil).RequestHandoff(ctx, successorRequest()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first successor got %v, want the deadline", err)
		}
		records, err := f.ReadRecords(t.Context(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
		if err != nil || len(records) != 1 || string(records[0].Value) != later {
			t.Errorf("the requests are %+v, %v; want that of the later successor", records, err)
		}
	})
}

// A lease that is handed off is the one that the successor has requested.
func TestHandoffKeepsTheRequestedLease(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFixture(t).begin(&lease.Options{Handoff: mode}, time.Second, nil)
				req := successorRequest()
				req.Strict, req.MaxStall = true, time.Minute
				granted, err := h.keeper(nil).RequestHandoff(t.Context(), req)
				if err != nil || !granted.Lease.Strict || granted.Lease.TTL != lease.DefaultTTL {
					t.Errorf("got %+v, %v; want a strict lease of %v", granted, err, lease.DefaultTTL)
				}
				if got := h.head().Holder; got.Owner != "agent-b" || got.Reactor != "agent" || !got.Strict || got.MaxStall != time.Minute {
					t.Errorf("the holder is %+v, want the successor, strict and with its bound on stalls", got)
				}
				h.done.Wait()
				if !errors.Is(h.oldErr, lease.ErrHandedOff) {
					t.Errorf("the former holder ended with %v, want a handoff", h.oldErr)
				}
			})
		})
	}
}

// failingReads is a store whose reads of a run's records fail from the second one on.
type failingReads struct {
	runstore.RunStore
	reads atomic.Int64
}

func (s *failingReads) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if s.reads.Add(1) > 1 {
		return nil, &runstore.OpError{Op: "read records", Run: id, Err: runstore.ErrCorrupt}
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// A request that cannot be read costs the holder nothing.
func TestRequestThatCannotBeRead(t *testing.T) {
	for _, mode := range []lease.HandoffMode{lease.Gap, lease.Overlap} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
			keeper, err := lease.New(&failingReads{RunStore: f}, &lease.Options{Handoff: mode})
			if err != nil {
				t.Fatal(err)
			}
			err = keeper.Do(t.Context(), request(), wait(time.Minute))
			if mode == lease.Overlap && err != nil || mode == lease.Gap && err != lease.ErrHandoffRequested {
				t.Errorf("%v: got %v", mode, err)
			}
			f.wantFree()
		})
	}
}

// A successor whose TTL is short repeats its request in time, whatever its back-off.
func TestRequestIsRepeatedWithinItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var done sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		done.Go(func() { _ = f.keeper(nil).Do(ctx, request(), wait(time.Hour)) })
		elapse(time.Second)
		const ttl = 3 * time.Second
		successor := f.keeper(&lease.Options{TTL: ttl, MinBackoff: 10 * time.Second})
		done.Go(func() { _, _ = successor.RequestHandoff(ctx, successorRequest()) })
		for range 60 {
			elapse(time.Second)
			records, err := f.ReadRecords(t.Context(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{lease.HandoffKey}})
			if err != nil || len(records) != 1 {
				t.Fatalf("got %v, %v", records, err)
			}
			if age := time.Since(records[0].Updated.Time); age > ttl {
				t.Fatalf("the request is %v old, and is ignored after %v", age, ttl)
			}
		}
		cancel()
		done.Wait()
	})
}

// lateCommits is a store whose commits a test replaces.
type lateCommits struct {
	runstore.RunStore
	commit func(next func() (runstore.Committed, error)) (runstore.Committed, error)
}

func (s *lateCommits) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return s.commit(func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

// A request that reaches the store after its grant is refused: a later holder would hand its lease off
// to a successor that has had it.
func TestRequestAfterItsGrantIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		h := f.begin(&lease.Options{Handoff: lease.Overlap}, 0, nil)
		repeated, handed, commits := make(chan struct{}), make(chan struct{}), 0
		f.mu.Lock()
		f.acquire = func(_ context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			f.mu.Lock()
			guards := len(f.acquires[len(f.acquires)-1].Guards)
			f.mu.Unlock()
			if guards > 0 {
				<-repeated
				defer close(handed)
			}
			return next()
		}
		f.mu.Unlock()
		successor, err := lease.New(&lateCommits{f, func(next func() (runstore.Committed, error)) (runstore.Committed, error) {
			if commits++; commits == 1 {
				_, _ = next()
				return runstore.Committed{}, unavailable() // so that the request is repeated
			}
			close(repeated)
			<-handed
			return next()
		}}, &lease.Options{RequestTimeout: 9 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		granted, err := successor.RequestHandoff(t.Context(), successorRequest())
		if err != nil || commits != 2 {
			t.Fatalf("got %v after %d requests, want the lease after 2", err, commits)
		}
		h.done.Wait()
		f.wantNoRequest()
		if err := successor.Hold(t.Context(), granted, wait(time.Second)); err != nil {
			t.Errorf("the successor: %v", err)
		}
	})
}

func TestRequestsThatAreIgnored(t *testing.T) {
	used := runstore.NewGrantID()
	for name, put := range map[string]func(f *fixture){
		"of a dead successor": func(f *fixture) {
			f.putRequest(`{"owner":"agent-b","grant":"g","ttl":30000000000}`)
			elapse(31 * time.Second)
		},
		"without an owner": func(f *fixture) { f.putRequest(`{"grant":"g","ttl":30000000000}`) },
		"garbage":          func(f *fixture) { f.putRequest(`garbage`) },
		"that the store refuses": func(f *fixture) {
			f.putRequest(`{"owner":"agent-b","grant":"g","ttl":1}`)
		},
		"for a grant that has ended": func(f *fixture) {
			f.grant(runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second, Grant: used})
			value, err := json.Marshal(map[string]any{"owner": "agent-b", "grant": used, "ttl": 30 * time.Second})
			if err != nil {
				f.t.Fatal(err)
			}
			f.putRequest(string(value))
		},
		"for a grant with writes that has ended": func(f *fixture) {
			req := successorRequest()
			req.Grant, req.TTL = used, 30*time.Second
			req.Writes.Delete(lease.HandoffKey)
			granted, err := f.AcquireLease(f.t.Context(), req)
			if err != nil {
				f.t.Fatal(err)
			}
			if _, err := f.ReleaseLease(f.t.Context(), runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
				f.t.Fatal(err)
			}
			value, err := json.Marshal(map[string]any{"owner": "agent-b", "grant": used, "ttl": 30 * time.Second})
			if err != nil {
				f.t.Fatal(err)
			}
			f.putRequest(string(value))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				put(f)
				granted := f.grant(agent)
				err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Hold(t.Context(), granted, wait(3*time.Minute))
				if err != nil {
					t.Errorf("the holder got %v, want its lease to the end", err)
				}
				f.wantFree()
			})
		})
	}
}

func (f *fixture) putRequest(value string) {
	f.t.Helper()
	b := runstore.NewBatch(run, runstore.Unguarded("test"))
	b.Put(lease.HandoffKey, []byte(value))
	if _, err := f.Commit(f.t.Context(), b); err != nil {
		f.t.Fatal(err)
	}
}

// passBy acquires and releases the run's lease for owner, and reports whether it was to be had.
func (f *fixture) passBy(owner runstore.Owner) bool {
	f.t.Helper()
	l, err := f.RunStore.AcquireLease(f.t.Context(), runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: owner, TTL: time.Second}})
	if errors.Is(err, runstore.ErrLeaseHeld) {
		return false
	}
	if err == nil {
		_, err = f.RunStore.ReleaseLease(f.t.Context(), runstore.ReleaseRequest{Fence: l.Fence()})
	}
	if err != nil {
		f.t.Errorf("the lease of %s: %v", owner, err)
	}
	return true
}

// A lease whose handoff did not reach the store, and which the successor acquired after the expiry, was
// lost, not handed off.
func TestSuccessorOfAnExpiredLease(t *testing.T) {
	for name, want := range map[string]runstore.Token{"at once": 2, "after another holder": 3} {
		t.Run(name, func(t *testing.T) {
			between := want == 3 // another holder is still to come
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				lost := false
				var cut sync.WaitGroup
				cut.Add(1)
				f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					f.mu.Lock()
					req := f.acquires[n-1]
					f.mu.Unlock()
					switch {
					case len(req.Guards) > 0 && !lost: // the holder's consent
						cut.Wait()
						lost = true
						return runstore.Granted{}, replyLost // and so was the request
					case between && req.Owner == "agent-b":
						between = !f.passBy("other")
					}
					return next()
				}
				f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					if f.head().Token > 1 {
						return next()
					}
					return runstore.Renewed{}, unavailable()
				}
				h := f.begin(&lease.Options{Handoff: lease.Overlap, Grace: time.Hour}, 0, nil)
				h.succeed(t.Context(), cut.Done)
				if !errors.Is(h.oldErr, lease.ErrLost) || errors.Is(h.oldErr, lease.ErrHandedOff) {
					t.Errorf("the holder got %v, want a loss", h.oldErr)
				}
				if h.nextErr != nil || h.granted.Lease.Token != want {
					t.Errorf("the successor got token %v, %v; want %v", h.granted.Lease.Token, h.nextErr, want)
				}
			})
		})
	}
}
