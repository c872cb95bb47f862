package tape_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// begin begins a run of its own and fails the test if it cannot.
func begin(t *testing.T, tp *tape.Tape, invocation string) tape.BeginRunResult {
	t.Helper()
	r, err := tp.BeginRun(t.Context(), beginRequest(invocation))
	if err != nil {
		t.Fatalf("BeginRun: %v", err)
	}
	return r
}

func beginRequest(invocation string) tape.BeginRunRequest {
	return tape.BeginRunRequest{
		Key:   tape.RunKey{App: "treasury", User: "ana", Session: "s-1", Invocation: invocation},
		Owner: "worker-a", TTL: time.Minute,
		Identity: tape.Identity{Scopes: []string{"pay", "read"}, Labels: map[string]string{"k": "v"}},
	}
}

// history is everything that a store holds about a run, for comparing.
type history struct {
	run     runstore.Run
	events  []runstore.Event
	records []runstore.Record
}

func historyOf(t *testing.T, s runstore.RunStore, id runstore.RunID) history {
	t.Helper()
	var h history
	var err error
	if h.run, err = s.GetRun(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for e, err := range runstore.Journal(t.Context(), s, id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		h.events = append(h.events, e)
	}
	for r, err := range runstore.Records(t.Context(), s, id, "") {
		if err != nil {
			t.Fatal(err)
		}
		h.records = append(h.records, r)
	}
	return h
}

// kinds returns the journal's kinds in order.
func (h history) kinds() []string {
	var kinds []string
	for _, e := range h.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// counter counts the calls that reach a store.
type counter struct {
	runstore.RunStore
	mu    sync.Mutex
	calls []string
}

func (c *counter) count(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, op)
}

// take returns the calls since the last take.
func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

func (c *counter) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	c.count("create")
	return c.RunStore.CreateRun(ctx, spec)
}

func (c *counter) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	c.count("get")
	return c.RunStore.GetRun(ctx, id)
}

func (c *counter) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	c.count("acquire")
	return c.RunStore.AcquireLease(ctx, req)
}

func (c *counter) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	c.count("renew")
	return c.RunStore.RenewLease(ctx, req)
}

func (c *counter) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	c.count("release")
	return c.RunStore.ReleaseLease(ctx, req)
}

func (c *counter) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	c.count("commit")
	return c.RunStore.Commit(ctx, b)
}

func (c *counter) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	c.count("journal")
	return c.RunStore.ReadJournal(ctx, id, from, limit)
}

func (c *counter) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	c.count("records")
	return c.RunStore.ReadRecords(ctx, id, q)
}

func (c *counter) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	c.count("scan")
	return c.RunStore.ScanIndex(ctx, q)
}

func (c *counter) Now(ctx context.Context) (time.Time, error) {
	c.count("now")
	return c.RunStore.Now(ctx)
}

// lossy applies writes and loses every other reply of each method, the first
// one first: so it loses the reply to each operation, and none to its repeat.
type lossy struct {
	runstore.RunStore
	mu      sync.Mutex
	replies map[string]int
}

func (l *lossy) lose(method string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replies == nil {
		l.replies = map[string]int{}
	}
	if l.replies[method]++; l.replies[method]%2 == 0 {
		return nil
	}
	return &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("reply lost")}
}

func (l *lossy) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	c, err := l.RunStore.CreateRun(ctx, spec)
	if err != nil {
		return c, err
	}
	return c, l.lose("create")
}

func (l *lossy) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	lease, err := l.RunStore.AcquireLease(ctx, req)
	if err != nil {
		return lease, err
	}
	return lease, l.lose("acquire")
}

func (l *lossy) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	done, err := l.RunStore.Commit(ctx, b)
	if err != nil {
		return done, err
	}
	return done, l.lose("commit")
}

// newTape returns a Tape on a store of its own, and the store.
func newTape(t *testing.T) (*tape.Tape, *memory.Handle, *memory.Store) {
	t.Helper()
	s := memory.New(nil)
	h := s.Open()
	return tape.New(h, nil), h, s
}
