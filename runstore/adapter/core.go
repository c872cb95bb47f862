package adapter

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Core is a store as an engine implements it. Its methods have the guarantees of those of
// runstore.RunStore, and may assume:
//
//   - the input was checked
//   - the handle is open, and ctx had not ended when the method was called
//   - a request for a grant has a grant id
//
// An error is one of the contract's kinds, or classified with package outcome; the outcome of any
// other error is unknown. The result beside an error is ignored.
type Core interface {
	CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error)
	GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error)

	AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error)
	RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error)
	ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error)
	Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error)

	ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error)
	ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error)
	ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error)
	ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error)

	Now(ctx context.Context) (time.Time, error)

	// Close releases the engine's resources. It is called once, and no operation begins after it.
	// idle is closed when the operations in flight have ended: an engine that lets them complete
	// waits for it, and one that ends them itself need not. The handle's Close waits for it in any
	// case.
	Close(idle <-chan struct{}) error
}

// Options adjusts what a [Store] does around the methods of its [Core]. The zero value is usable.
type Options struct {
	// Waiters is the hub whose waiters each write wakes. The zero value has no waiters.
	Waiters wakeup.Hub
	// Before, if not nil, runs before each operation. The operation ends with its error.
	Before func(ctx context.Context) error
	// Classify, if not nil, returns the error of an operation on a run, "" for none, with the
	// engine's knowledge: an error that it classifies with package outcome, or err itself. It is not
	// called with an ErrUnknownOutcome, which no cause makes definite.
	Classify func(id runstore.RunID, err error) error
}
