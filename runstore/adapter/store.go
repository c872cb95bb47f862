package adapter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Store is an open handle: the runstore.RunStore of a [Core]. An engine's store embeds it.
type Store struct {
	core Core
	opts Options

	mu        sync.Mutex // guards the following
	closed    bool
	inFlight  int
	idle      chan struct{} // closed when the handle is closed and no operation is in flight
	closeOnce sync.Once
	closeErr  error
}

var _ runstore.RunStore = (*Store)(nil)

// New returns the store of an engine.
func New(core Core, opts Options) *Store {
	return &Store{core: core, opts: opts, idle: make(chan struct{})}
}

// Do runs f as one operation of the store. name is the operation's in errors, and id the run that
// it is about, "" for none. Do returns the error invalid, if it is not nil, before anything else;
// then ErrClosed on a closed handle; then ErrUnavailable if ctx has ended; otherwise the result of
// f. An operation of an engine beyond the contract calls Do, too.
func Do[R any](ctx context.Context, s *Store, name string, id runstore.RunID, invalid error, f func(ctx context.Context) (R, error)) (R, error) {
	var result, zero R
	if err := s.do(ctx, name, id, invalid, func(ctx context.Context) (err error) {
		result, err = f(ctx)
		return err
	}); err != nil {
		return zero, outcome.Wrap(name, id, err)
	}
	return result, nil
}

func (s *Store) do(ctx context.Context, name string, id runstore.RunID, invalid error, f func(ctx context.Context) error) error {
	if invalid != nil {
		return invalid
	}
	if !s.enter() {
		return runstore.ErrClosed
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return outcome.Unavailable(err)
	}
	ctx = withOperation(ctx, name)
	if s.opts.Before != nil {
		if err := s.opts.Before(ctx); err != nil {
			return err
		}
	}
	err := f(ctx)
	if err != nil && s.opts.Classify != nil && !errors.Is(err, runstore.ErrUnknownOutcome) {
		err = s.opts.Classify(id, err)
	}
	return err
}

// enter registers an operation and reports false if the handle is closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.inFlight++
	return true
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight--; s.inFlight == 0 && s.closed {
		close(s.idle)
	}
}

// Close implements runstore.RunStore. It returns when the operations in flight have ended.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		if s.inFlight == 0 {
			close(s.idle)
		}
		s.mu.Unlock()
		s.closeErr = s.core.Close(s.idle)
		<-s.idle
	})
	return s.closeErr
}

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (created runstore.Created, err error) {
	defer s.opts.Waiters.After(&err, runstore.OnWrite, spec.ID)
	return Do(ctx, s, "create run", spec.ID, spec.Check(), func(ctx context.Context) (runstore.Created, error) {
		if spec.Lease != nil {
			lease := withGrant(*spec.Lease)
			spec.Lease = &lease
		}
		return s.core.CreateRun(ctx, spec)
	})
}

// GetRun implements runstore.RunStore.
func (s *Store) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return Do(ctx, s, "get run", id, runstore.CheckRunID(id), func(ctx context.Context) (runstore.Run, error) {
		return s.core.GetRun(ctx, id)
	})
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (granted runstore.Granted, err error) {
	defer s.opts.Waiters.After(&err, runstore.OnWrite, req.Run)
	return Do(ctx, s, "acquire lease", req.Run, req.Check(), func(ctx context.Context) (runstore.Granted, error) {
		req.LeaseSpec = withGrant(req.LeaseSpec)
		return s.core.AcquireLease(ctx, req)
	})
}

// withGrant returns spec with a new grant id if it has none.
func withGrant(spec runstore.LeaseSpec) runstore.LeaseSpec {
	if spec.Grant == "" {
		spec.Grant = runstore.NewGrantID()
	}
	return spec
}

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (renewed runstore.Renewed, err error) {
	id := req.Fence.Run()
	if !req.Writes.IsZero() { // a heartbeat wakes nobody
		defer s.opts.Waiters.After(&err, runstore.OnWrite, id)
	}
	return Do(ctx, s, "renew lease", id, req.Check(), func(ctx context.Context) (runstore.Renewed, error) {
		return s.core.RenewLease(ctx, req)
	})
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (done runstore.Committed, err error) {
	id := req.Fence.Run()
	defer s.opts.Waiters.After(&err, runstore.OnRelease, id)
	return Do(ctx, s, "release lease", id, req.Check(), func(ctx context.Context) (runstore.Committed, error) {
		return s.core.ReleaseLease(ctx, req)
	})
}

// Commit implements runstore.RunStore.
func (s *Store) Commit(ctx context.Context, batch runstore.Batch) (done runstore.Committed, err error) {
	defer s.opts.Waiters.After(&err, wakeup.KindOf(batch), batch.Run())
	return Do(ctx, s, "commit", batch.Run(), batch.Check(), func(ctx context.Context) (runstore.Committed, error) {
		return s.core.Commit(ctx, batch)
	})
}

// ReadJournal implements runstore.RunStore.
func (s *Store) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return Do(ctx, s, "read journal", id, runstore.CheckRead(id, from, limit), func(ctx context.Context) ([]runstore.Event, error) {
		return s.core.ReadJournal(ctx, id, from, limit)
	})
}

// ReadRecords implements runstore.RunStore.
func (s *Store) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return Do(ctx, s, "read records", id, q.Check(id), func(ctx context.Context) ([]runstore.Record, error) {
		return s.core.ReadRecords(ctx, id, q)
	})
}

// ScanIndex implements runstore.RunStore.
func (s *Store) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return Do(ctx, s, "scan index", "", q.Check(), func(ctx context.Context) ([]runstore.IndexEntry, error) {
		return s.core.ScanIndex(ctx, q)
	})
}

// ReadFeed implements runstore.RunStore.
func (s *Store) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return Do(ctx, s, "read feed", "", q.Check(), func(ctx context.Context) ([]runstore.FeedEvent, error) {
		return s.core.ReadFeed(ctx, q)
	})
}

// Now implements runstore.RunStore. The time is in UTC, in units of runstore.TimePrecision.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return Do(ctx, s, "now", "", nil, func(ctx context.Context) (time.Time, error) {
		now, err := s.core.Now(ctx)
		return now.UTC().Truncate(runstore.TimePrecision), err
	})
}
