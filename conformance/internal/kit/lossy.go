package kit

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// Loss is what a network does to one write.
type Loss int

// What a network can do to a write.
const (
	NothingLost Loss = iota
	RequestLost      // the store never sees the write
	ReplyLost        // the store applies the write, and its caller gets no reply
)

// Lossy is a store behind a network that loses writes and replies. In both cases the caller gets
// ErrUnknownOutcome, as it would if the engine stayed unreachable.
type Lossy struct {
	runstore.RunStore
	// Next returns what happens to the next write.
	Next func() Loss
}

// ErrCut is the cause of the errors that a Lossy store returns.
var ErrCut = errors.New("the connection was cut by the test")

func cut(op string, id runstore.RunID) error {
	return &runstore.OpError{Op: op, Run: id, Err: runstore.ErrUnknownOutcome, Cause: ErrCut}
}

// Through sends one write through the network.
func Through[V any](l Lossy, op string, id runstore.RunID, write func() (V, error)) (result V, err error) {
	var zero V
	lost := l.Next()
	if lost == RequestLost {
		return zero, cut(op, id)
	}
	result, err = write()
	if lost == ReplyLost {
		return zero, cut(op, id)
	}
	return result, err
}

// CreateRun creates a run through the network.
func (l Lossy) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return Through(l, "create run", spec.ID, func() (runstore.Created, error) { return l.RunStore.CreateRun(ctx, spec) })
}

// AcquireLease acquires a lease through the network.
func (l Lossy) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return Through(l, "acquire lease", req.Run, func() (runstore.Granted, error) { return l.RunStore.AcquireLease(ctx, req) })
}

// RenewLease renews a lease through the network.
func (l Lossy) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return Through(l, "renew lease", req.Fence.Run(), func() (runstore.Renewed, error) { return l.RunStore.RenewLease(ctx, req) })
}

// ReleaseLease releases a lease through the network.
func (l Lossy) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return Through(l, "release lease", req.Fence.Run(), func() (runstore.Committed, error) { return l.RunStore.ReleaseLease(ctx, req) })
}

// Commit commits a batch through the network.
func (l Lossy) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return Through(l, "commit", b.Run(), func() (runstore.Committed, error) { return l.RunStore.Commit(ctx, b) })
}
