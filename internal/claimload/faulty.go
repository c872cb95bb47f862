package claimload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Faulty is a store behind a bad connection: at random it loses requests and replies, delays
// requests beyond the time at which their caller gave up, and refuses calls.
type Faulty struct {
	runstore.RunStore
	network *network
}

// network is what the connections of one load share.
type network struct {
	t      T
	mu     sync.Mutex
	random *rand.Rand
	// faults is the share of calls that fail; 0 to 1.
	faults float64
	// delay is the longest delay of a request.
	delay time.Duration
	// late counts requests whose callers have given up.
	late sync.WaitGroup
}

type fault int

const (
	noFault fault = iota
	refused
	requestLost
	replyLost
	requestLate
)

var errCut = errors.New("the connection was cut by the test")

// next returns what happens to the next call, and a random delay.
func (n *network) next() (fault, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delay := time.Duration(n.random.Float64() * float64(n.delay))
	if n.random.Float64() >= n.faults {
		return noFault, delay / 20
	}
	return fault(1 + n.random.IntN(4)), delay
}

func failed(op string, kind error) error {
	return &runstore.OpError{Op: op, Err: kind, Cause: errCut}
}

// read passes a read on.
func read[R any](f Faulty, op string, do func() (R, error)) (R, error) {
	if what, _ := f.network.next(); what == refused {
		var none R
		return none, failed(op, runstore.ErrUnavailable)
	}
	return do()
}

// write passes a write on.
func write[R any](ctx context.Context, f Faulty, op string, do func(context.Context) (R, error)) (R, error) {
	var none R
	what, delay := f.network.next()
	switch what {
	case refused:
		return none, failed(op, runstore.ErrUnavailable)
	case requestLost:
		return none, failed(op, runstore.ErrUnknownOutcome)
	case replyLost:
		if _, err := do(ctx); err != nil {
			return none, err
		}
		return none, failed(op, runstore.ErrUnknownOutcome)
	case requestLate:
		f.network.late.Go(func() {
			time.Sleep(delay)
			guarded(f.network.t, func() { _, _ = do(context.WithoutCancel(ctx)) })
		})
		return none, failed(op, runstore.ErrUnknownOutcome)
	default:
		time.Sleep(delay)
		return do(ctx)
	}
}

// CreateRun implements runstore.RunStore.
func (f Faulty) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return write(ctx, f, "create run", func(ctx context.Context) (runstore.Created, error) { return f.RunStore.CreateRun(ctx, spec) })
}

// Commit implements runstore.RunStore.
func (f Faulty) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return write(ctx, f, "commit", func(ctx context.Context) (runstore.Committed, error) { return f.RunStore.Commit(ctx, b) })
}

// ReadRecords implements runstore.RunStore.
func (f Faulty) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return read(f, "read records", func() ([]runstore.Record, error) { return f.RunStore.ReadRecords(ctx, id, q) })
}

// ScanIndex implements runstore.RunStore.
func (f Faulty) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return read(f, "scan index", func() ([]runstore.IndexEntry, error) { return f.RunStore.ScanIndex(ctx, q) })
}
