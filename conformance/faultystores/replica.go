package faultystores

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// replicaStores read wrongly from a replica.
func replicaStores() []faultyStore {
	return []faultyStore{
		{"replica-of-any-age", "A read with bound 0 is answered by a replica that lags.",
			"I5/a-stale-journal-is-the-beginning-of-the-journal", func(s *store) { s.replica.flaws.ageless = true }},
		{"replica-with-a-hole", "A replica returns an event without its predecessor.",
			"I5/a-stale-journal-is-the-beginning-of-the-journal", func(s *store) { s.replica.flaws.hole = true }},
		{"replica-tells-positions", "A replica returns positions, from which a reader of the feed would resume.",
			"I5/a-stale-journal-is-the-beginning-of-the-journal", func(s *store) { s.replica.flaws.positions = true }},
		{"replica-mixes-two-times", "A replica joins an index with records of another time.",
			"I9/stale-candidates-were-true", func(s *store) { s.replica.flaws.mixed = true }},
		{"replica-without-a-bound", "A negative bound is taken to mean no bound.",
			"I12/staleness-is-bounded", func(s *store) { s.replica.flaws.unbounded = true }},
	}
}

// replica simulates a read replica. It answers a query from its last result for the same query
// while that result is younger than the bound, which is as stale as a correct replica may be. A
// read with bound 0 neither uses nor updates the replica.
type replica struct {
	flaws struct{ ageless, hole, positions, mixed, unbounded bool }

	mu       sync.Mutex
	journals map[string]snapshot[runstore.Event]
	scans    map[string]snapshot[runstore.Candidate]
}

// snapshot is the replica's last result of a query, with the time at which it was read on the clock
// of this process.
type snapshot[V any] struct {
	at  time.Time
	all []V
}

// fresh reports whether a result of time at may answer a read with this bound.
func (r *replica) fresh(at time.Time, bound time.Duration) bool {
	return !at.IsZero() && (r.flaws.ageless || time.Since(at) < bound)
}

func (r *replica) check(bound time.Duration) error {
	if bound < 0 && !r.flaws.unbounded {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "bound", Problem: fmt.Sprintf("%v is negative", bound)}
	}
	return nil
}

// ReadJournalStale implements runstore.StaleReader.
func (h *handle) ReadJournalStale(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int, bound time.Duration) ([]runstore.Event, error) {
	r := &h.replica
	if err := r.check(bound); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	question := fmt.Sprintf("%q %d %d", id, from, limit)
	if known := r.journals[question]; r.fresh(known.at, bound) {
		return slices.Clone(known.all), nil
	}
	began := time.Now()
	all, err := h.Handle.ReadJournal(ctx, id, from, limit)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if !r.flaws.positions {
			all[i].Position = 0
		}
	}
	if n := len(all); r.flaws.hole && bound > 0 && n > 1 {
		all = slices.Delete(all, n-2, n-1)
	}
	if bound > 0 || r.flaws.ageless {
		r.journals[question] = snapshot[runstore.Event]{began, all}
	}
	return slices.Clone(all), nil
}

// ScanIndexStale implements runstore.StaleReader.
func (h *handle) ScanIndexStale(ctx context.Context, q runstore.IndexQuery, bound time.Duration) ([]runstore.Candidate, error) {
	r := &h.replica
	if err := r.check(bound); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	question := fmt.Sprintf("%+v", q)
	if known := r.scans[question]; r.fresh(known.at, bound) {
		return slices.Clone(known.all), nil
	}
	began := time.Now()
	entries, err := h.Handle.ScanIndex(ctx, q)
	if err != nil {
		return nil, err
	}
	all := runstore.ToCandidates(entries)
	if r.flaws.mixed && bound > 0 && len(all) > 0 {
		all[0].At = all[0].At.Add(time.Minute)
	}
	if bound > 0 {
		r.scans[question] = snapshot[runstore.Candidate]{began, all}
	}
	return slices.Clone(all), nil
}
