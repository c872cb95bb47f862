package runstore

import (
	"context"
	"time"
)

// RunStore stores runs. All methods are safe for concurrent use, take their deadline from ctx,
// and return errors that match the sentinels of this package with errors.Is. A context that ends
// before the engine was asked yields [ErrUnavailable]; a context that ends while a write is in
// flight yields [ErrUnknownOutcome]. Both match the context's error too.
//
// Limits are those of this package's constants on every engine. Input beyond them is refused with
// [ErrInvalid] or [ErrTooLarge] before the engine is asked. Every method of a closed store returns
// [ErrClosed].
type RunStore interface {
	// CreateRun inserts a run unless a run of that id exists, with the lease and the writes that
	// spec carries, in one atomic step. When the run exists already, CreateRun writes nothing and
	// returns the existing run, with New false. A repeat whose own grant is current returns the
	// lease again, with New true. So does a repeat of a spec with a lease and writes after the
	// grant has ended, for as long as the store remembers the result ([RememberedBatches]).
	//
	// A purged run can be created again; its tokens continue above the last one (I2). A [GrantID]
	// that the purged run has used is refused with ErrFenced, and nothing is created.
	CreateRun(ctx context.Context, spec RunSpec) (Created, error)

	// GetRun returns the run's head and its summary record, or ErrNotFound.
	GetRun(ctx context.Context, id RunID) (Run, error)

	// AcquireLease grants the run's lease if and only if the lease is free, released or expired on
	// the store clock, or the request preempts. Each grant's token is the run's last token plus 1
	// (I2). TTL counts from the commit, on the store clock.
	//
	// A request may be repeated under its [GrantID], which documents what the repeat returns. A
	// caller that wants to acquire the lease again uses a new id.
	//
	// A fence among the request's guards is the holder's consent to a handoff. AtToken limits a
	// preemption to the grant that the caller has read.
	//
	// Errors: ErrNotFound; ErrFenced (as *FencedError, with the current token) when the grant of
	// that id has ended, or a fence among the guards is not the current grant; ErrLeaseExpired
	// when that fence is of a strict lease; ErrLeaseHeld (as *LeaseHeldError, with the holder and
	// the remaining time); ErrConflict when a guard of the request does not hold; ErrUnavailable;
	// ErrUnknownOutcome, after which the caller repeats the request with the same GrantID before
	// acting.
	AcquireLease(ctx context.Context, req AcquireRequest) (Granted, error)

	// RenewLease extends the current grant to TTL from now, on the store clock, under the same
	// token. It never shortens a lease. A grant that has expired and that no later grant has
	// replaced can be renewed, unless it is strict. Writes that the request carries are applied in
	// the same atomic step.
	//
	// Errors: ErrNotFound, ErrFenced, ErrLeaseExpired (strict), ErrStoreBehind; ErrNoProgress (as
	// *NoProgressError) when the holder has stalled for longer than its MaxStall (I13).
	RenewLease(ctx context.Context, req RenewRequest) (Renewed, error)

	// ReleaseLease ends the current grant, with the writes that the request carries, in one atomic
	// step. The token stays. Repeating the release of the run's last grant succeeds and writes
	// nothing. After a later grant, the repeat of a release with writes returns the first result,
	// for as long as the store remembers it ([RememberedBatches]); the repeat of any other release
	// returns ErrFenced.
	//
	// Errors: ErrNotFound, ErrFenced, ErrLeaseExpired (strict), ErrStoreBehind, ErrConflict when a
	// guard of the request does not hold.
	ReleaseLease(ctx context.Context, req ReleaseRequest) (Committed, error)

	// Commit is the only write path to a run's journal and records. It checks all guards of the
	// batch and applies all its writes in one atomic step of the engine, or applies nothing.
	//
	// Errors: ErrNotFound; ErrFenced (as *FencedError, with the current token); ErrLeaseExpired;
	// ErrStoreBehind; ErrConflict (as *ConflictError, with what the guard found); ErrUnavailable;
	// ErrUnknownOutcome. When the fence does not hold, Commit returns ErrFenced, whatever the
	// other guards say.
	Commit(ctx context.Context, batch Batch) (Committed, error)

	// ReadJournal returns the run's events with seq ≥ from, ascending: at most limit, and fewer
	// when they pass [MaxPageBytes]. An empty page means that there is nothing (more) to read.
	// Error: ErrNotFound when there is no such run.
	ReadJournal(ctx context.Context, id RunID, from Seq, limit int) ([]Event, error)

	// ReadRecords returns the records that q selects, ordered by key, without the absent ones.
	// Error: ErrNotFound when there is no such run.
	ReadRecords(ctx context.Context, id RunID, q RecordQuery) ([]Record, error)

	// ScanIndex returns the entries of one cross-run queue in order: at most q.Limit, and fewer
	// when they pass [MaxPageBytes]. An empty page means that there is nothing (more) to read.
	ScanIndex(ctx context.Context, q IndexQuery) ([]IndexEntry, error)

	// ReadFeed returns the events of all runs with a position > q.After, ascending: at most
	// q.Limit, and fewer when they pass [MaxPageBytes]. An empty page means that there is nothing
	// yet. A page may end early while a commit before it is still open. An event whose stored data
	// are damaged is returned with FeedEvent.Err set.
	//
	// Errors: ErrStoreBehind when q.After is above every position of the store; ErrUnsupported
	// when the next event is in a format that only newer programs can read.
	ReadFeed(ctx context.Context, q FeedQuery) ([]FeedEvent, error)

	// Now returns the store clock, which judges expiry.
	Now(ctx context.Context) (time.Time, error)

	// Close ends this handle. Operations in flight complete first or fail with a definite error;
	// other handles on the same store continue to work.
	Close() error
}
