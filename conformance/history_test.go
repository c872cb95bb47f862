package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"
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
				h := Harness{New: func(T) Instance {
					s := memory.New(nil)
					return Instance{Open: func(context.Context) (runstore.RunStore, error) { return wrap(s.Open()), nil }}
				}}
				for _, c := range historyCases() {
					if c.Name != test.failing {
						continue
					}
					got := execute(t.Context(), h, c)
					// A random history may miss the fault; several histories must not.
					for attempt := 1; broken && got.Status == Passed && attempt < 20; attempt++ {
						got = execute(t.Context(), h, c)
					}
					if broken && (got.Status != Failed || !strings.Contains(got.Reason, "not linearizable") || !strings.Contains(got.Reason, SeedVariable)) {
						t.Errorf("broken: %s is %s, want failed by the checker, with the seed: %s", c.Name, got.Status, got.Reason)
					}
					if !broken && got.Status != Passed {
						t.Errorf("sound: %s is %s: %s", c.Name, got.Status, got.Reason)
					}
				}
			}
		})
	}
}

// TestModelOfLateCopies checks that the model accepts a late copy of a request after a later grant
// only if it is refused.
func TestModelOfLateCopies(t *testing.T) {
	t.Parallel()
	acquired := func(grant runstore.GrantID, token runstore.Token, kind error, call int64) porcupine.Operation {
		return porcupine.Operation{
			Input: opInput{kind: opPreempt, run: "run", grant: grant}, Call: call,
			Output: opOutput{kind: kind, token: token}, Return: call + 1,
		}
	}
	before := []porcupine.Operation{acquired("first", 1, nil, 1), acquired("second", 2, nil, 3)}
	refused := append(slices.Clone(before), acquired("first", 0, runstore.ErrFenced, 5))
	if err := judge(refused, caseTimeout); err != nil {
		t.Errorf("a late copy that is refused: %v", err)
	}
	granted := append(slices.Clone(before), acquired("first", 3, nil, 5))
	if err := judge(granted, caseTimeout); err == nil {
		t.Error("a late copy that is granted a lease passes the checker")
	}
}

// TestJudgeOutOfTime checks that a history which the checker had no time for does not pass.
func TestJudgeOutOfTime(t *testing.T) {
	t.Parallel()
	// Many concurrent writes of unknown outcome, and a read that no order of them explains.
	var history []porcupine.Operation
	for i := range 24 {
		name := string(rune('a' + i))
		history = append(history, porcupine.Operation{
			ClientId: i, Input: opInput{kind: opCommit, run: "run", batch: name, at: -1, key: i % 2},
			Call: 1, Output: opOutput{kind: runstore.ErrUnknownOutcome}, Return: openEnd,
		})
	}
	history = append(history, porcupine.Operation{
		ClientId: 24, Input: opInput{kind: opJournal, run: "run"}, Call: 2, Output: opOutput{found: "never;"}, Return: 3,
	})
	err := judge(history, 1)
	if err == nil || !strings.HasPrefix(err.Error(), "checker ran out of time") {
		t.Errorf("got verdict %v, want that the checker ran out of time", err)
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
