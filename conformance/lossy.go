package conformance

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// loss is what a network does to one write.
type loss int

const (
	nothingLost loss = iota
	requestLost      // the store never sees the write
	replyLost        // the store applies the write, and its caller gets no reply
)

// lossy is a store behind a network that loses writes and replies. In both cases the caller gets
// ErrUnknownOutcome, as it would if the engine stayed unreachable.
type lossy struct {
	runstore.RunStore
	next func() loss
}

var errCut = errors.New("the connection was cut by the test")

func cut(op string, id runstore.RunID) error {
	return &runstore.OpError{Op: op, Run: id, Err: runstore.ErrUnknownOutcome, Cause: errCut}
}

// through sends one write through the network.
func through[V any](l lossy, op string, id runstore.RunID, write func() (V, error)) (result V, err error) {
	var zero V
	lost := l.next()
	if lost == requestLost {
		return zero, cut(op, id)
	}
	result, err = write()
	if lost == replyLost {
		return zero, cut(op, id)
	}
	return result, err
}

func (l lossy) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return through(l, "create run", spec.ID, func() (runstore.Created, error) { return l.RunStore.CreateRun(ctx, spec) })
}

func (l lossy) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return through(l, "acquire lease", req.Run, func() (runstore.Granted, error) { return l.RunStore.AcquireLease(ctx, req) })
}

func (l lossy) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return through(l, "renew lease", req.Fence.Run(), func() (runstore.Renewed, error) { return l.RunStore.RenewLease(ctx, req) })
}

func (l lossy) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return through(l, "release lease", req.Fence.Run(), func() (runstore.Committed, error) { return l.RunStore.ReleaseLease(ctx, req) })
}

func (l lossy) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return through(l, "commit", b.Run(), func() (runstore.Committed, error) { return l.RunStore.Commit(ctx, b) })
}
