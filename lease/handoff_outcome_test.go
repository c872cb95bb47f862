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

// replyLost is the error of a request that was applied and whose reply is lost.
var replyLost = &runstore.OpError{Op: "test", Run: run, Err: runstore.ErrUnknownOutcome}

// lastSteps replaces the steps that follow the work in a handoff. n counts the copies of a step from 1.
type lastSteps struct {
	writes  func(n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) // the renewal with the final writes
	grant   func(f *fixture, n int, next func() (runstore.Granted, error)) (runstore.Granted, error)
	release func() error
}

// run hands a lease off while the store fails, and returns the result of Do and the final writes that
// were stored.
func (s lastSteps) run(t *testing.T) (stored int, result error) {
	f := newFixture(t)
	var returned bool // the work
	var renewals, grants int
	f.renew = func(_ context.Context, _ int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
		if !returned || s.writes == nil {
			return next()
		}
		renewals++
		return s.writes(renewals, next)
	}
	f.acquire = func(_ context.Context, _ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
		if !returned || s.grant == nil {
			return next()
		}
		grants++
		return s.grant(f, grants, next)
	}
	f.release = func(_ context.Context, _ int, next func() (runstore.Committed, error)) (runstore.Committed, error) {
		if s.release == nil {
			return next()
		}
		return runstore.Committed{}, s.release()
	}
	f.putRequest(`{"owner":"agent-b","grant":"b","ttl":30000000000}`)
	result = f.keeper(&lease.Options{Handoff: lease.Gap}).Do(t.Context(), request(), func(ctx context.Context, held *lease.Held) error {
		<-ctx.Done()
		held.ReleaseWith(writes("last"))
		returned = true
		return nil
	})
	return len(f.kinds()), result
}

// Final writes that a handoff has stored, or may have, are not reported as refused when a later step fails.
func TestFinalWritesOfAFailedHandoff(t *testing.T) {
	awayAtTheGrant := func(_ *fixture, _ int, _ func() (runstore.Granted, error)) (runstore.Granted, error) {
		return runstore.Granted{}, unavailable()
	}
	for name, test := range map[string]struct {
		steps lastSteps
		want  error // matched in addition to the unknown outcome
	}{
		"the reply to the writes is lost, then the store is away": {lastSteps{
			writes: func(n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				if n > 1 {
					return runstore.Renewed{}, unavailable()
				}
				_, _ = next()
				return runstore.Renewed{}, replyLost
			},
		}, runstore.ErrUnavailable},
		"the reply to the writes is lost, then the credentials are refused": {lastSteps{
			writes: func(n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				if n > 1 {
					return runstore.Renewed{}, &runstore.OpError{Op: "test", Run: run, Err: runstore.ErrInvalid}
				}
				_, _ = next()
				return runstore.Renewed{}, replyLost
			},
		}, runstore.ErrInvalid},
		"the reply to the writes is lost, then the run is purged": {lastSteps{
			writes: func(n int, next func() (runstore.Renewed, error)) (runstore.Renewed, error) {
				if n > 1 {
					return runstore.Renewed{}, &runstore.OpError{Op: "test", Run: run, Err: runstore.ErrNotFound}
				}
				_, _ = next()
				return runstore.Renewed{}, replyLost
			},
		}, lease.ErrLost},
		"the store is away at the grant": {lastSteps{grant: awayAtTheGrant}, runstore.ErrUnavailable},
		"the reply to the grant is lost, then the store is away": {lastSteps{
			grant: func(f *fixture, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
				if n > 1 {
					return awayAtTheGrant(f, n, next)
				}
				_, _ = next()
				return runstore.Granted{}, replyLost
			},
		}, runstore.ErrUnavailable},
		"the lease is preempted before the grant": {lastSteps{
			grant: func(f *fixture, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
				if n == 1 {
					f.grant(runstore.LeaseSpec{Owner: "operator", TTL: time.Minute})
				}
				return next()
			},
		}, lease.ErrLost},
		"the request is withdrawn before the grant, and the release fails": {lastSteps{
			grant: func(f *fixture, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
				b := runstore.NewBatch(run, runstore.Unguarded("the successor has left"))
				b.Delete(lease.HandoffKey)
				if _, err := f.Commit(context.Background(), b); err != nil {
					t.Error(err)
				}
				return next()
			},
			release: unavailable,
		}, runstore.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stored, err := test.steps.run(t)
				if runstore.OutcomeOf(err) != runstore.Unknown || !errors.Is(err, test.want) || stored != 1 {
					t.Errorf("got %v with %d final writes stored; want %v, of unknown outcome, and one", err, stored, test.want)
				}
			})
		})
	}
}

// The work returns while the grant of an Overlap handoff is in flight, and the store refuses the grant, because the
// successor has stored its request again. The holder makes no grant for the new request: it would lose
// the final writes. They are applied with the release.
func TestDoubtfulHandoffThatIsRefusedAfterTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stored = `{"owner":"agent-b","grant":"b","ttl":30000000000}`
		f := newFixture(t)
		sent := make(chan struct{})
		f.acquire = func(ctx context.Context, n int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
			if n != 2 {
				return next()
			}
			f.putRequest(stored)
			close(sent)
			<-ctx.Done()
			return runstore.Granted{}, replyLost
		}
		f.putRequest(stored)
		err := f.keeper(&lease.Options{Handoff: lease.Overlap}).Do(t.Context(), request(), func(_ context.Context, held *lease.Held) error {
			<-sent
			held.ReleaseWith(writes("last"))
			return nil
		})
		if err != nil || len(f.acquires) != 3 {
			t.Errorf("got %v after %d requests for leases, want a release after the repeat of the grant", err, len(f.acquires))
		}
		f.wantKinds("last")
		f.wantFree()
	})
}

// Final writes that did not reach the store are reported as not applied.
func TestFinalWritesThatWereNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored, err := lastSteps{writes: func(int, func() (runstore.Renewed, error)) (runstore.Renewed, error) {
			return runstore.Renewed{}, unavailable()
		}}.run(t)
		if runstore.OutcomeOf(err) != runstore.NotApplied || stored != 0 {
			t.Errorf("got %v with %d final writes stored, want ErrUnavailable and none", err, stored)
		}
	})
}
