package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// standbySet is a set of standbys that wait for the lease of one run.
type standbySet struct {
	ctx     context.Context // ends when the standbys are stopped, or when one of them fails
	caller  *caller         // shared by all of them
	need    int64           // number of refusals after which all of them wait
	granted chan runstore.Lease
	stop    func() error // waits for the standbys, and returns the error of the one that failed
}

// errRoundOver is the cause with which standbys are stopped.
var errRoundOver = errors.New("the round is over")

// startStandbys starts the standbys. Each asks for the lease again as soon as its grant was
// received.
func (h *handover) startStandbys(ctx context.Context) (*standbySet, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	st := &standbySet{ctx: ctx, caller: &caller{RunStore: h.shared}, granted: make(chan runstore.Lease), need: int64(h.standbys)}
	opts := &lease.Options{TTL: contestTTL}
	if h.expiry {
		opts.TTL = handoverTTL
	}
	var store lease.Store = st.caller
	if h.hints {
		store = notifying{st.caller, h.shared.(runstore.RunNotifier)}
		st.need *= 2 // a keeper asks again after it has subscribed
	} else {
		opts.MinBackoff, opts.MaxBackoff = handoverPoll, handoverPoll
	}
	keeper, err := lease.New(store, opts)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	var all sync.WaitGroup
	for i := range h.standbys {
		all.Go(func() {
			for ctx.Err() == nil {
				got, err := keeper.Acquire(ctx, runstore.AcquireRequest{Run: h.run, LeaseSpec: runstore.LeaseSpec{Owner: owner(i)}})
				if err != nil {
					cancel(err) // counts only if it is the first cause
					return
				}
				select {
				case st.granted <- got.Lease:
				case <-ctx.Done():
					if err := h.release(got.Lease); err != nil { // otherwise it would block the next round
						cancel(err)
					}
				}
			}
		})
	}
	st.stop = func() error {
		cancel(errRoundOver)
		all.Wait()
		if cause := context.Cause(ctx); !errors.Is(cause, errRoundOver) {
			return cause
		}
		return nil
	}
	return st, nil
}

// next waits for the next grant.
func (st *standbySet) next(ctx context.Context) (runstore.Lease, error) {
	select {
	case l := <-st.granted:
		return l, nil
	case <-st.ctx.Done():
		return runstore.Lease{}, context.Cause(st.ctx)
	case <-ctx.Done():
		return runstore.Lease{}, ctx.Err()
	}
}

// allWait waits until the last granted lease was refused to every standby.
func (st *standbySet) allWait(ctx context.Context) error {
	for st.caller.refused.Load() < st.need {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
		if err := st.ctx.Err(); err != nil {
			return context.Cause(st.ctx)
		}
	}
	return nil
}
