package acme

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Server simulates an engine: its data outlives every connection.
type Server struct {
	store *memory.Store
}

// NewServer returns an empty engine.
func NewServer() *Server { return &Server{store: memory.New(nil)} }

// Advance moves the engine's clock forward. Only tests use it.
func (s *Server) Advance(d time.Duration) { s.store.Advance(d) }

// Store is the adapter: one connection to a Server. It implements the contract
// and none of the optional capabilities.
type Store struct {
	conn runstore.RunStore

	mu    sync.Mutex
	calls map[string]int
}

var _ runstore.RunStore = (*Store)(nil)

// Open connects to a server.
func Open(_ context.Context, s *Server) (*Store, error) {
	return &Store{conn: s.store.Open(), calls: map[string]int{}}, nil
}

// Calls returns how often a method was called, a feature specific to this adapter.
func (s *Store) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func (s *Store) count(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
}

// CreateRun implements runstore.RunStore.
func (s *Store) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	s.count("CreateRun")
	return s.conn.CreateRun(ctx, spec)
}

// GetRun implements runstore.RunStore.
func (s *Store) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	s.count("GetRun")
	return s.conn.GetRun(ctx, id)
}

// AcquireLease implements runstore.RunStore.
func (s *Store) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	s.count("AcquireLease")
	return s.conn.AcquireLease(ctx, req)
}

// RenewLease implements runstore.RunStore.
func (s *Store) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	s.count("RenewLease")
	return s.conn.RenewLease(ctx, req)
}

// ReleaseLease implements runstore.RunStore.
func (s *Store) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	s.count("ReleaseLease")
	return s.conn.ReleaseLease(ctx, req)
}

// Commit implements runstore.RunStore.
func (s *Store) Commit(ctx context.Context, batch runstore.Batch) (runstore.Committed, error) {
	s.count("Commit")
	return s.conn.Commit(ctx, batch)
}

// ReadJournal implements runstore.RunStore.
func (s *Store) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	s.count("ReadJournal")
	return s.conn.ReadJournal(ctx, id, from, limit)
}

// ReadRecords implements runstore.RunStore.
func (s *Store) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	s.count("ReadRecords")
	return s.conn.ReadRecords(ctx, id, q)
}

// ScanIndex implements runstore.RunStore.
func (s *Store) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	s.count("ScanIndex")
	return s.conn.ScanIndex(ctx, q)
}

// ReadFeed implements runstore.RunStore.
func (s *Store) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	s.count("ReadFeed")
	return s.conn.ReadFeed(ctx, q)
}

// Now implements runstore.RunStore.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	s.count("Now")
	return s.conn.Now(ctx)
}

// Close implements runstore.RunStore.
func (s *Store) Close() error { return s.conn.Close() }
