package leasecases

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// observed is a store that records when it granted, refused and renewed leases, on the monotonic clock of
// this process.
type observed struct {
	runstore.RunStore

	mu       sync.Mutex
	answered map[runstore.RunID]bool      // runs of acquires that were granted or refused
	asked    map[runstore.RunID]request   // the acquire that was not refused, or not yet
	granted  map[runstore.RunID]time.Time // when the reply of a grant arrived
	renewed  map[runstore.RunID]time.Time // when the last renewal that succeeded was sent
}

// request is an acquire, with the time when it was sent first: a repeat has the same grant id.
type request struct {
	grant runstore.GrantID
	at    time.Time
}

func newObserved(s runstore.RunStore) *observed {
	return &observed{
		RunStore: s, answered: map[runstore.RunID]bool{}, asked: map[runstore.RunID]request{},
		granted: map[runstore.RunID]time.Time{}, renewed: map[runstore.RunID]time.Time{},
	}
}

// Unwrap gives access to the store's capabilities.
func (o *observed) Unwrap() runstore.RunStore { return o.RunStore }

// AcquireLease implements runstore.RunStore.
func (o *observed) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	o.mu.Lock()
	if o.asked[req.Run].grant != req.Grant {
		o.asked[req.Run] = request{req.Grant, time.Now()}
	}
	o.mu.Unlock()
	granted, err := o.RunStore.AcquireLease(ctx, req)
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(err, runstore.ErrLeaseHeld) {
		o.answered[req.Run] = true
		delete(o.asked, req.Run) // the next request with that grant id is a new one
	}
	if err == nil {
		o.answered[req.Run] = true
		o.granted[req.Run] = time.Now()
	}
	return granted, err
}

// RenewLease implements runstore.RunStore.
func (o *observed) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	sent := time.Now()
	renewed, err := o.RunStore.RenewLease(ctx, req)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.renewed[req.Fence.Run()] = sent
	}
	return renewed, err
}

// grantedAt returns when a lease of the run was granted; zero if none was.
func (o *observed) grantedAt(id runstore.RunID) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.granted[id]
}

// askedAt returns when the acquire that was granted was sent first.
func (o *observed) askedAt(id runstore.RunID) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[id].at
}

// lastRenewal returns when the last renewal of a lease of the run that succeeded was sent; zero if none was.
func (o *observed) lastRenewal(id runstore.RunID) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.renewed[id]
}

// answeredRuns returns for how many runs the store has granted or refused a lease.
func (o *observed) answeredRuns() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.answered)
}
