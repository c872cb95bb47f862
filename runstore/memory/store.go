// Package memory is the reference store: the contract of package runstore in plain Go, under one
// mutex. It passes the whole conformance suite without an exemption, and tests can advance its
// clock.
//
// Its content lives as long as the [Store]. Handles from Open represent processes and can be closed
// one by one. Importing the package registers the scheme memory: with runstore.Open. The URL
// memory: opens a store of its own; memory:NAME opens the store of that name, which the process
// shares.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/gate"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/rules"
)

// Options adjusts a store; nil means the defaults.
type Options struct {
	// Clock is the store clock; time.Now by default. It may step in any direction: the store clock
	// never goes back.
	Clock func() time.Time
}

// Store is the content that its handles share.
type Store struct {
	mu      sync.Mutex
	clock   func() time.Time
	moved   time.Duration // by Advance
	writers gate.Gate     // closed by Stall
	seen    time.Time     // the latest time that the store clock showed

	epochs []runstore.EpochChange
	runs   map[runstore.RunID]*run
	order  []*run // by creation, the purged ones left out
	feed   []runstore.FeedEvent
	last   runstore.Position
	index  map[runstore.IndexName]*sortedIndex
	wakers map[chan struct{}]bool
}

// run is a run with everything that belongs to it. A purged run keeps its entry for its token.
type run struct {
	rules.Head
	purged  bool
	floor   runstore.Version // the highest version of a deleted record
	events  []runstore.Event
	records map[runstore.RecordKey]*record
	results map[string]result // by the names of rules.BatchResult and its like
}

// result is the remembered result of a request with writes and an id.
type result struct {
	runstore.Committed
	multiCommitID []byte            // names the commit of several runs that a batch was part of
	token         runstore.Token    // of the grant that was made or released
	former        runstore.GrantEnd // of the grant before the one that was made
}

type record struct {
	runstore.Record
	entries []indexEntry
}

// New returns an empty store.
func New(opts *Options) *Store {
	s := &Store{
		clock:  time.Now,
		runs:   map[runstore.RunID]*run{},
		index:  map[runstore.IndexName]*sortedIndex{},
		wakers: map[chan struct{}]bool{},
	}
	if opts != nil && opts.Clock != nil {
		s.clock = opts.Clock
	}
	return s
}

// Open returns a handle on the store. Each handle represents a process of its own.
func (s *Store) Open() *Handle { return &Handle{store: s} }

// Advance moves the store clock forward.
func (s *Store) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved += d
}

// Stall blocks every later writer until resume is called; readers proceed. It simulates an engine
// whose writers wait for a lock. held waits until n more writers were blocked, and returns an error
// if ctx ends or writers are resumed first.
func (s *Store) Stall() (held func(ctx context.Context, n int) error, resume func()) {
	s.mu.Lock() // no writer is in the middle
	defer s.mu.Unlock()
	return s.writers.Close()
}

// now returns the store clock, which never goes back. The caller holds the lock.
func (s *Store) now() time.Time {
	now := s.clock().Add(s.moved).UTC().Truncate(runstore.TimePrecision)
	if now.After(s.seen) {
		s.seen = now
	}
	return s.seen
}

func (s *Store) epoch() runstore.Epoch {
	if len(s.epochs) == 0 {
		return 0
	}
	return s.epochs[len(s.epochs)-1].Epoch
}

// find returns a run that exists and is not purged. The caller holds the lock.
func (s *Store) find(id runstore.RunID) (*run, error) {
	r := s.runs[id]
	if r == nil || r.purged {
		return nil, runstore.ErrNotFound
	}
	r.Epoch = s.epoch()
	return r, nil
}

// Handle is one open handle on a [Store]. It implements runstore.RunStore and
// the capabilities MultiCommitter, Notifier, RunNotifier, EpochManager and Describer.
type Handle struct {
	store  *Store
	mu     sync.Mutex
	closed bool
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.Notifier
	runstore.EpochManager
	runstore.Describer
} = (*Handle)(nil)

// Close implements runstore.RunStore.
func (h *Handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return nil
}

// begin starts every operation. It checks the input before anything else, and refuses to proceed on
// a closed handle or after the context's end.
func (h *Handle) begin(ctx context.Context, invalid error) error {
	if invalid != nil {
		return invalid
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return runstore.ErrClosed
	}
	return ctx.Err()
}

// write runs f as one atomic step at one instant of the store clock.
func (h *Handle) write(ctx context.Context, op string, id runstore.RunID, invalid error, f func(now time.Time) error) error {
	if err := h.begin(ctx, invalid); err != nil {
		return opError(op, id, err)
	}
	if err := h.store.lock(ctx); err != nil {
		return opError(op, id, err)
	}
	defer h.store.mu.Unlock()
	if err := f(h.store.now()); err != nil {
		return opError(op, id, err)
	}
	h.store.wake()
	return nil
}

// lock waits until writers are not blocked and takes the lock. If ctx ends first, lock returns its
// error: nothing has been written, and nothing will be.
func (s *Store) lock(ctx context.Context) error {
	for {
		if _, err := s.writers.Pass(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		if !s.writers.Closed() {
			return nil
		}
		s.mu.Unlock()
	}
}

// read runs f on a consistent state.
func (h *Handle) read(ctx context.Context, op string, id runstore.RunID, invalid error, f func() error) error {
	if err := h.begin(ctx, invalid); err != nil {
		return opError(op, id, err)
	}
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if err := f(); err != nil {
		return opError(op, id, err)
	}
	return nil
}

func opError(op string, id runstore.RunID, err error) error {
	e := &runstore.OpError{Op: op, Run: id, Err: err}
	if err == context.Canceled || err == context.DeadlineExceeded {
		// The context ended before anything was written.
		e.Err, e.Cause = runstore.ErrUnavailable, err
	}
	return e
}

// Now implements runstore.RunStore.
func (h *Handle) Now(ctx context.Context) (now time.Time, err error) {
	err = h.read(ctx, "now", "", nil, func() error {
		now = h.store.now()
		return nil
	})
	return now, err
}
