package conformance_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// TestHistoriesRejectBrokenStores checks that the history cases fail on a store that breaks a rule
// and pass on a store that breaks none.
func TestHistoriesRejectBrokenStores(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, failing string
		broken        func(runstore.RunStore) runstore.RunStore
	}{
		{"a stale read of the head", "lease-histories-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return &staleHead{RunStore: s} }},
		{"a stale read of the journal", "journal-and-record-histories-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return &staleJournal{RunStore: s} }},
		{"a zombie's write", "histories-of-fenced-writes-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return unfenced{s} }},
		{"a repeat applied twice", "histories-with-lost-replies-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return forgetful{s} }},
		{"an acquire that never refuses", "lease-histories-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return greedy{s} }},
		{"an acquire that does not wait for the expiry", "histories-of-leases-that-expire-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return greedy{s} }},
		{"a renewal that is forgotten", "histories-of-leases-that-expire-are-linearizable",
			func(s runstore.RunStore) runstore.RunStore { return unrenewed{s} }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, broken := range []bool{false, true} {
				wrap := test.broken
				if !broken {
					wrap = func(s runstore.RunStore) runstore.RunStore { return s }
				}
				h := conformance.Harness{New: func(conformance.T) conformance.Instance {
					s := memory.New(nil)
					return conformance.Instance{Open: func(context.Context) (runstore.RunStore, error) { return wrap(s.Open()), nil }}
				}}
				for _, c := range conformance.Cases() {
					if c.Name != test.failing {
						continue
					}
					got := conformance.RunCase(t.Context(), h, c)
					// A random history may miss the fault; several histories must not.
					for attempt := 1; broken && got.Status == conformance.Passed && attempt < 20; attempt++ {
						got = conformance.RunCase(t.Context(), h, c)
					}
					if broken && (got.Status != conformance.Failed || !strings.Contains(got.Reason, "not linearizable") || !strings.Contains(got.Reason, conformance.SeedVariable)) {
						t.Errorf("broken: %s is %s, want failed by the checker, with the seed: %s", c.Name, got.Status, got.Reason)
					}
					if !broken && got.Status != conformance.Passed {
						t.Errorf("sound: %s is %s: %s", c.Name, got.Status, got.Reason)
					}
				}
			}
		})
	}
}

// staleHead sometimes returns the previous head of a run.
type staleHead struct {
	runstore.RunStore
	mu   sync.Mutex
	n    int
	last map[runstore.RunID]runstore.Run
}

func (s *staleHead) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := s.RunStore.GetRun(ctx, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[runstore.RunID]runstore.Run{}
	}
	old, ok := s.last[id]
	s.last[id] = run
	if s.n++; ok && s.n%3 == 0 {
		return old, err
	}
	return run, err
}

// staleJournal sometimes leaves out the last event.
type staleJournal struct {
	runstore.RunStore
	mu sync.Mutex
	n  int
}

func (s *staleJournal) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	events, err := s.RunStore.ReadJournal(ctx, id, from, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n%3 == 0 && len(events) > 0 {
		events = events[:len(events)-1]
	}
	return events, err
}

// unfenced ignores the fence of every batch.
type unfenced struct{ runstore.RunStore }

func (s unfenced) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	open := runstore.NewBatch(b.Run(), runstore.Unguarded("a zombie"))
	if g := b.Guards(); len(g.Versions) > 0 {
		open = runstore.NewBatch(b.Run(), g.Versions[0])
	}
	open.ID, open.Writes = b.ID, b.Writes
	return s.RunStore.Commit(ctx, open)
}

// forgetful forgets the id of every batch.
type forgetful struct{ runstore.RunStore }

func (s forgetful) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	b.ID = ""
	return s.RunStore.Commit(ctx, b)
}

// unrenewed acknowledges renewals without applying them.
type unrenewed struct{ runstore.RunStore }

func (s unrenewed) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	ttl := req.TTL
	req.TTL = runstore.MinTTL // does not shorten the lease
	renewed, err := s.RunStore.RenewLease(ctx, req)
	if err == nil {
		renewed.TTL, renewed.ExpiresAt = ttl, renewed.Committed.Time.Add(ttl)
	}
	return renewed, err
}

// greedy preempts the holder in every acquire.
type greedy struct{ runstore.RunStore }

func (s greedy) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	req.Preempt = "greed"
	return s.RunStore.AcquireLease(ctx, req)
}
