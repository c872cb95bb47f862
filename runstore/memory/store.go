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
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
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
	rules.FirstResult
	multiCommitID []byte // names the commit of several runs that a batch was part of
}

type record struct {
	runstore.Record
	entries []indexEntry
}

// New returns an empty store.
func New(opts *Options) *Store {
	s := &Store{
		clock: time.Now,
		runs:  map[runstore.RunID]*run{},
		index: map[runstore.IndexName]*sortedIndex{},
	}
	if opts != nil && opts.Clock != nil {
		s.clock = opts.Clock
	}
	return s
}

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

// Handle is one open handle on a [Store]. It implements runstore.RunStore and the capabilities
// MultiCommitter, Notifier, RunNotifier, EpochManager, TermReader, Mover, StrictCommitter and Describer.
type Handle struct {
	*adapter.Store
	adapter.MultiCommitter
	adapter.EpochManager
	adapter.Notifier
	adapter.RunNotifier
	adapter.TermReader
	adapter.Mover
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.Notifier
	runstore.RunNotifier
	runstore.EpochManager
	runstore.TermReader
	runstore.Mover
	runstore.StrictCommitter
	runstore.Describer
} = (*Handle)(nil)

// Open returns a handle on the store. Each handle represents a process of its own.
func (s *Store) Open() *Handle {
	c := core{s}
	h := &Handle{Store: adapter.New(c, adapter.Options{Waiters: wakeup.Of(s)})}
	h.MultiCommitter = adapter.NewMultiCommitter(h.Store, c)
	h.EpochManager = adapter.NewEpochManager(h.Store, c)
	h.Notifier = adapter.NewNotifier(h.Store, c)
	h.RunNotifier = adapter.NewRunNotifier(h.Store, nil)
	h.TermReader = adapter.NewTermReader(h.Store, c)
	h.Mover = adapter.NewMover(h.Store, c)
	return h
}

// StrictAtCommit implements runstore.StrictCommitter: a write reads the clock while it holds the
// lock.
func (h *Handle) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (h *Handle) Describe(context.Context) (runstore.Description, error) {
	return runstore.Description{Engine: "memory", Version: "reference", Tier: "embedded"}, nil
}

// core implements adapter.Core on the content that all handles share.
type core struct{ store *Store }

// Close implements adapter.Core.
func (core) Close(<-chan struct{}) error { return nil }

// Now implements adapter.Core.
func (c core) Now(context.Context) (time.Time, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return c.store.now(), nil
}

// write runs f as one atomic step at one instant of the store clock.
func write[R any](ctx context.Context, s *Store, f func(now time.Time) (R, error)) (R, error) {
	if err := s.lock(ctx); err != nil {
		var none R
		return none, outcome.Unavailable(err)
	}
	defer s.mu.Unlock()
	result, err := f(s.now())
	if err == nil {
		wakeup.Of(s).Wake(runstore.OnWrite, anyRun)
	}
	return result, err
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

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"a struct under a mutex; the process clock or a simulated one",
		"in the critical section of each write")
}
