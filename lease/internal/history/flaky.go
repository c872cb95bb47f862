package history

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Flaky is a store behind a network that delays requests, loses replies and can be cut.
type Flaky struct {
	runstore.RunStore
	mu   sync.Mutex
	rand *rand.Rand
	cut  bool
}

// NewFlaky returns a store whose faults follow from r, for the use of one client.
func NewFlaky(store runstore.RunStore, r *rand.Rand) *Flaky {
	return &Flaky{RunStore: store, rand: r}
}

// Cut cuts the network, or restores it. Requests during a cut are not applied.
func (f *Flaky) Cut(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
}

// Unwrap gives access to the store's capabilities, its wake-ups among them.
func (f *Flaky) Unwrap() runstore.RunStore { return f.RunStore }

// errUnavailable is the error of a request that was not applied, or of a read.
func errUnavailable() error {
	return &runstore.OpError{Op: "test", Err: runstore.ErrUnavailable, Cause: errors.New("a fault of the test")}
}

// send sends a request. Of twelve requests, one is refused and not applied, and one gets no reply:
// half of the latter are applied.
func send[T any](ctx context.Context, f *Flaky, call func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	dice, late, cut := f.rand.IntN(12), time.Duration(f.rand.IntN(40))*time.Millisecond, f.cut
	lost := f.rand.IntN(2) == 0 // on the way to the store, not on the way back
	f.mu.Unlock()
	time.Sleep(late)
	var none T
	switch {
	case cut && dice < 6:
		<-ctx.Done() // a silent network
		fallthrough
	case cut, dice == 0:
		return none, errUnavailable()
	case dice == 1:
		if !lost {
			if _, err := call(ctx); err != nil {
				return none, err
			}
		}
		return none, &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("a lost message of the test")}
	}
	result, err := call(ctx)
	time.Sleep(late / 2)
	return result, err
}

// AcquireLease implements runstore.RunStore.
func (f *Flaky) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return send(ctx, f, func(ctx context.Context) (runstore.Granted, error) { return f.RunStore.AcquireLease(ctx, req) })
}

// RenewLease implements runstore.RunStore.
func (f *Flaky) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return send(ctx, f, func(ctx context.Context) (runstore.Renewed, error) { return f.RunStore.RenewLease(ctx, req) })
}

// ReleaseLease implements runstore.RunStore.
func (f *Flaky) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return send(ctx, f, func(ctx context.Context) (runstore.Committed, error) { return f.RunStore.ReleaseLease(ctx, req) })
}

// Commit implements runstore.RunStore.
func (f *Flaky) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return send(ctx, f, func(ctx context.Context) (runstore.Committed, error) { return f.RunStore.Commit(ctx, b) })
}

// GetRun implements runstore.RunStore.
func (f *Flaky) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := send(ctx, f, func(ctx context.Context) (runstore.Run, error) { return f.RunStore.GetRun(ctx, id) })
	if runstore.OutcomeOf(err) == runstore.Unknown { // a read has no outcome
		err = errUnavailable()
	}
	return run, err
}
