package bigtable

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// run is what a handle knows of a run: the head as it was when the handle last read
// or wrote it, and what came with it. It may be out of date; a write that relies on it
// finds out, since its predicate is that very head. What is cached beside the head is
// current as long as the head is: nothing in a run changes without it.
type run struct {
	id   runstore.RunID
	lane chan struct{} // holds a value while an operation is under way
	uses int           // operations that have or want the lane; see runs

	known   bool
	stored  []byte // the revision's cell; nil when there is none
	head    head
	beat    int64
	former  rules.FormerGrants           // as they were when needs.epoch was last read
	records map[runstore.RecordKey]*meta // nil: absent
	all     bool                         // a record that is not among them is not in the row
	results map[string]result            // by their names; nil: not read
	tail    tail

	sealing atomic.Pointer[sealing] // segments that the next write takes out of the row

	prints    prints // of the cold records, as of a list of moves
	misses    int    // reads of cold records that found none
	left      int64  // what the records took after the last move
	relieving atomic.Bool
}

// runs holds what a handle knows of the runs that it writes to.
type runs struct {
	mu     sync.Mutex
	all    map[runstore.RunID]*run
	prints int // fingerprints of all runs
}

// Bounds of what a handle keeps in mind.
const (
	maxRuns    = 4096
	maxRecords = 4096      // of one run
	maxLoaded  = 256 << 10 // of records, in bytes, that are read at once so that no later put has to read
)

// enter waits for a run's lane: a handle's writes to one run go one after another,
// because of two at once one would only find that the other was first.
func (rs *runs) enter(ctx context.Context, id runstore.RunID) (*run, error) {
	rs.mu.Lock()
	r := rs.all[id]
	if r == nil {
		rs.evict()
		r = &run{id: id, lane: make(chan struct{}, 1)}
		rs.all[id] = r
	}
	r.uses++
	rs.mu.Unlock()
	select {
	case r.lane <- struct{}{}:
		return r, nil
	case <-ctx.Done():
		rs.done(r)
		return nil, outcome.Unavailable(ctx.Err())
	}
}

func (rs *runs) leave(r *run) {
	<-r.lane
	rs.done(r)
}

func (rs *runs) done(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.uses--
}

// prepare hands segments that are written to the run's next write.
func (rs *runs) prepare(id runstore.RunID, p *sealing) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.all[id]; r != nil {
		r.sealing.Store(p)
	}
}

// prepared reports whether segments wait for the run's next write.
func (rs *runs) prepared(id runstore.RunID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.all[id]
	return r != nil && r.sealing.Load() != nil
}

// evict makes room for another run. The caller holds rs.mu.
func (rs *runs) evict() {
	for id, r := range rs.all {
		if len(rs.all) < maxRuns && rs.prints < maxPrints {
			return
		}
		if r.uses == 0 {
			rs.prints -= len(r.prints.all)
			delete(rs.all, id)
		}
	}
}

// forget makes the next operation read the run.
func (r *run) forget() {
	r.known, r.stored, r.records, r.all, r.results, r.tail, r.former = false, nil, nil, false, nil, tail{}, nil
}

// isAbsent reports whether there surely is no record of a key, by what the handle knows.
func (r *run) isAbsent(key runstore.RecordKey) bool {
	return r.all && (r.head.Moved == 0 || !r.mayBeCold(key))
}

// mayBeCold reports whether there may be a cold record of a key, by what the handle knows.
func (r *run) mayBeCold(key runstore.RecordKey) bool {
	known := r.prints.of == r.head.coldID()
	return key != runstore.SummaryKey && !(known && !r.prints.has(key))
}

// judged returns the head as package rules judges a request for the lease, with the
// former grants.
func (r *run) judged() rules.Head {
	h := r.head.rules(r.id, r.beat)
	h.Former = r.former
	return h
}

// exists reports whether there is such a run.
func (r *run) exists() bool { return r.stored != nil && !r.head.Purged }
