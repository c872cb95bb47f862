package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// standing are standbys that wait for the lease of one run.
type standing struct {
	ctx     context.Context // ends when they are stopped, or when one of them has failed
	caller  *caller         // of all of them
	need    int64           // refusals by which all of them wait
	granted chan runstore.Lease
	stop    func() error // waits for them, and returns the error of the one that failed
}

// errRoundOver is the cause with which standbys are stopped.
var errRoundOver = errors.New("the round is over")

// stand starts the standbys. Each asks for the lease again as soon as its grant was received.
func (h *handover) stand(ctx context.Context) (*standing, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	st := &standing{ctx: ctx, caller: &caller{RunStore: h.shared}, granted: make(chan runstore.Lease), need: int64(h.standbys)}
	opts := &lease.Options{TTL: contestTTL}
	if h.expiry {
		opts.TTL = handoverTTL
	}
	var store lease.Store = st.caller
	if h.hints {
		store = notifying{st.caller, h.shared.(runstore.RunNotifier)}
		st.need *= 2 // a keeper asks once more when it has subscribed
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
					if err := h.release(got.Lease); err != nil { // else it blocks the next round
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
func (st *standing) next(ctx context.Context) (runstore.Lease, error) {
	select {
	case l := <-st.granted:
		return l, nil
	case <-st.ctx.Done():
		return runstore.Lease{}, context.Cause(st.ctx)
	case <-ctx.Done():
		return runstore.Lease{}, ctx.Err()
	}
}

// allWait waits until every standby has been refused the lease that was granted last.
func (st *standing) allWait(ctx context.Context) error {
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
