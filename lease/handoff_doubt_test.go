package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// notEvaluated returns the errors of a store that has not looked at a request.
func notEvaluated() map[string]error {
	return map[string]error{
		"credentials": runstore.ErrInvalid,
		"damage":      &runstore.CorruptError{Run: run, Cause: errors.New("a bad sum")},
		"unsupported": runstore.ErrUnsupported,
	}
}

// A holder does not trust its lease while its successor has it. The store makes the grant, the reply is lost,
// and the store does not evaluate the repeats, nor any renewal. The work ends with the trusted time: it has no
// grace, because a contender can reach the store, too.
func TestDoubtfulHandoffStaysInDoubt(t *testing.T) {
	for name, refusal := range notEvaluated() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				refused := &runstore.OpError{Op: "test", Run: run, Err: refusal}
				repeats := 0
				f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					switch n {
					case 1:
						return next()
					case 2: // the grant to the successor
						if _, err := next(); err != nil {
							t.Error(err)
						}
						return runstore.Granted{}, replyLost
					default:
						repeats++
						return runstore.Granted{}, refused
					}
				}
				f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					if repeats > 0 {
						return runstore.Renewed{}, refused
					}
					return next()
				}
				f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
				began := time.Now()
				err := f.keeper(&lease.Options{Handoff: lease.Overlap, Grace: time.Hour}).Do(t.Context(), request(), func(ctx context.Context, h *lease.Held) error {
					for ctx.Err() == nil {
						elapse(100 * time.Millisecond)
						if _, ok := h.Trusted(); ok && f.head().Holder.Owner == "agent-b" {
							t.Fatalf("trusted after %v, while the successor has the lease", time.Since(began))
						}
					}
					return nil
				})
				if !errors.Is(err, lease.ErrExpired) || repeats == 0 || time.Since(began) > time.Minute {
					t.Errorf("got %v after %v and %d repeats, want ErrExpired within the TTL", err, time.Since(began), repeats)
				}
			})
		})
	}
}

// A grant that did not reach the store leaves no doubt: the store then refuses the request, and the holder
// keeps its lease to the end.
func TestUnsentHandoffLeavesNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if n == 2 {
				return runstore.Granted{}, unavailable()
			}
			return next()
		}
		f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000,"max_stall":-1}`) // invalid
		err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), wait(3*time.Minute))
		if err != nil || len(f.acquires) != 3 {
			t.Errorf("got %v after %d requests for leases, want the lease to the end and 3", err, len(f.acquires))
		}
		f.wantFree()
	})
}

// A holder does not trust its lease after the term of its successor. The store makes the grant, the reply is lost,
// the successor ends its term, and the store has forgotten the grant's result before the repeat.
func TestForgottenHandoffIsALoss(t *testing.T) {
	for name, refusal := range map[string]runstore.FencedError{
		"the last grant": {Presented: 2, Current: 2}, "a former grant": {Current: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					if n > 2 {
						return runstore.Granted{}, &refusal
					}
					granted, err := next()
					if n == 1 || err != nil {
						return granted, err
					}
					if _, err := f.RunStore.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Fence()}); err != nil {
						t.Error(err)
					}
					if refusal.Current > granted.Token {
						f.passBy("agent-c")
					}
					return runstore.Granted{}, replyLost
				}
				f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
					t.Error("the holder renews a lease that it has handed off")
					return next()
				}
				f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
				err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), wait(time.Minute))
				if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrFenced) || len(f.acquires) != 3 {
					t.Errorf("got %v after %d requests for leases, want ErrFenced after 3", err, len(f.acquires))
				}
			})
		})
	}
}

// The successor's own request for a free lease is granted, and the reply is lost. No later error makes the
// outcome definite.
func TestRequestHandoffOfUnknownOutcome(t *testing.T) {
	for name, kind := range map[string]error{
		"away": runstore.ErrUnavailable, "credentials": runstore.ErrInvalid, "closed": runstore.ErrClosed,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					if n > 1 {
						return runstore.Granted{}, &runstore.OpError{Op: "acquire lease", Run: run, Err: kind}
					}
					if _, err := next(); err != nil {
						t.Error(err)
					}
					return runstore.Granted{}, replyLost
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				_, err := f.keeper(nil).RequestHandoff(ctx, successorRequest())
				if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, kind) {
					t.Errorf("got %v, want %v, of unknown outcome", err, kind)
				}
			})
		})
	}
}

// A successor that gives up after its own request was granted, and the reply lost, revokes the lease.
func TestSuccessorThatGaveUpRevokesItsOwnGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			granted, err := next()
			if n == 1 {
				cancel()
				return runstore.Granted{}, replyLost
			}
			return granted, err
		}
		if _, err := f.keeper(nil).RequestHandoff(ctx, successorRequest()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the context", err)
		}
		if got := f.head().Token; got != 1 {
			t.Fatalf("the last token is %v, want that of the first request", got)
		}
		f.wantFree()
	})
}

// A successor that gives up does not acquire the lease only to revoke it: neither a free one, nor one that has
// expired and whose holder may be about to renew it. The store is away when the lease expires.
func TestWithdrawalAcquiresNothing(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprint("held ", held), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				var want runstore.Token
				if held {
					want = f.grant(agent).Lease.Token
				}
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				withdrawals := 0
				f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
					switch {
					case ctx.Err() != nil:
						withdrawals++
						return next()
					case held && n == 1: // the successor stores its request
						return next()
					case held:
						return runstore.Granted{}, unavailable()
					default:
						return runstore.Granted{}, replyLost // and so was the request
					}
				}
				if _, err := f.keeper(nil).RequestHandoff(ctx, successorRequest()); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want the deadline", err)
				}
				if got := f.head().Token; got != want || withdrawals != 1 {
					t.Errorf("the last token is %v after %d requests of the withdrawal, want %v and one", got, withdrawals, want)
				}
			})
		})
	}
}

// Final writes that are no progress are applied with a release if the holder has stalled for too long to renew its
// lease. The successor that has requested the lease then acquires it.
func TestFinalWritesOfAStalledHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := request()
		req.MaxStall = 5 * time.Second
		f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
		done := runstore.Status(7)
		opts := &lease.Options{Handoff: lease.Gap, Heartbeat: 14 * time.Second}
		err := f.keeper(opts).Do(t.Context(), req, func(_ context.Context, held *lease.Held) error {
			elapse(6 * time.Second)
			held.ReleaseWith(runstore.Writes{Status: &done})
			return nil
		})
		if got := f.head().Status; err != nil || got != done {
			t.Errorf("got %v and status %d, want the final status, %d", err, got, done)
		}
		f.wantFree()
	})
}

// oneFailedRead is a store that fails the second read of a run's records, which is that right before the grant.
type oneFailedRead struct {
	runstore.RunStore
	reads  int
	failed chan struct{}
}

func (s *oneFailedRead) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if s.reads++; s.reads == 2 {
		close(s.failed)
		return nil, &runstore.OpError{Op: "read records", Run: id, Err: runstore.ErrUnavailable}
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// A handoff is an overlap only if the grant was sent while the work ran. Here the store is away before the grant, or
// refuses the connection for it, and the work returns; its final writes are stored, and then the grant is made.
func TestModeOfAHandoffAfterTheReturn(t *testing.T) {
	for _, sent := range []bool{false, true} {
		t.Run(fmt.Sprint("sent ", sent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				s := &oneFailedRead{RunStore: f, failed: make(chan struct{})}
				failed := s.failed
				if sent {
					s.reads, failed = 2, make(chan struct{})
					f.acquire = func(_ context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
						if n == 2 {
							close(failed)
							return runstore.Granted{}, unavailable()
						}
						return next()
					}
				}
				f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
				keeper, err := lease.New(s, &lease.Options{Handoff: lease.Overlap})
				if err != nil {
					t.Fatal(err)
				}
				err = keeper.Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
					<-failed
					held.ReleaseWith(writes("last"))
					return nil
				})
				var handed *lease.HandedOffError
				if !errors.As(err, &handed) || handed.Mode != lease.Gap || handed.Overlap != 0 {
					t.Errorf("got %+v, want a handoff with a gap", err)
				}
				f.wantKinds("last")
			})
		})
	}
}
