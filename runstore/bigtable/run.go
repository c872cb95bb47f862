package bigtable

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// cachedRun is what a handle knows of a run: the head as it was when the handle last read
// or wrote it, and what came with it. It may be out of date; a write that relies on it
// finds out, since its predicate is that very head. What is cached beside the head is
// current as long as the head is: nothing in a run changes without it.
type cachedRun struct {
	id   runstore.RunID
	lock chan struct{} // holds a value while an operation is under way
	refs int           // operations that have or want the lane; see runs

	known   bool
	stored  []byte // the revision's cell; nil when there is none
	head    head
	beat    int64
	former  rules.FormerGrants                 // as they were when needs.epoch was last read
	records map[runstore.RecordKey]*recordMeta // nil: absent
	all     bool                               // a record that is not among them is not in the row
	results map[string]result                  // by their names; nil: not read
	tail    tail

	pendingSeal atomic.Pointer[pendingSeal] // segments that the next write takes out of the row

	fingerprints fingerprints // of the cold records, as of a list of moves
	absentReads  int          // reads of cold records that found none
	keptBytes    int64        // what the records took after the last move
	moving       atomic.Bool
}

// runCache holds what a handle knows of the runs that it writes to.
type runCache struct {
	mu           sync.Mutex
	all          map[runstore.RunID]*cachedRun
	fingerprints int // fingerprints of all runs
}

// Bounds of what a handle keeps in mind.
const (
	maxRuns    = 4096
	maxRecords = 4096      // of one run
	maxLoaded  = 256 << 10 // of records, in bytes, that are read at once so that no later put has to read
)

// acquire waits for a run's lane: a handle's writes to one run go one after another,
// because of two at once one would only find that the other was first.
func (rs *runCache) acquire(ctx context.Context, id runstore.RunID) (*cachedRun, error) {
	rs.mu.Lock()
	r := rs.all[id]
	if r == nil {
		rs.evict()
		r = &cachedRun{id: id, lock: make(chan struct{}, 1)}
		rs.all[id] = r
	}
	r.refs++
	rs.mu.Unlock()
	select {
	case r.lock <- struct{}{}:
		return r, nil
	case <-ctx.Done():
		rs.unref(r)
		return nil, outcome.Unavailable(ctx.Err())
	}
}

func (rs *runCache) release(r *cachedRun) {
	<-r.lock
	rs.unref(r)
}

func (rs *runCache) unref(r *cachedRun) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.refs--
}

// setPendingSeal hands segments that are written to the run's next write.
func (rs *runCache) setPendingSeal(id runstore.RunID, p *pendingSeal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.all[id]; r != nil {
		r.pendingSeal.Store(p)
	}
}

// hasPendingSeal reports whether segments wait for the run's next write.
func (rs *runCache) hasPendingSeal(id runstore.RunID) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.all[id]
	return r != nil && r.pendingSeal.Load() != nil
}

// evict makes room for another run. The caller holds rs.mu.
func (rs *runCache) evict() {
	for id, r := range rs.all {
		if len(rs.all) < maxRuns && rs.fingerprints < maxFingerprints {
			return
		}
		if r.refs == 0 {
			rs.fingerprints -= len(r.fingerprints.all)
			delete(rs.all, id)
		}
	}
}

// forget makes the next operation read the run.
func (r *cachedRun) forget() {
	r.known, r.stored, r.records, r.all, r.results, r.tail, r.former = false, nil, nil, false, nil, tail{}, nil
}

// isAbsent reports whether there surely is no record of a key, by what the handle knows.
func (r *cachedRun) isAbsent(key runstore.RecordKey) bool {
	return r.all && (r.head.Moved == 0 || !r.mayBeCold(key))
}

// mayBeCold reports whether there may be a cold record of a key, by what the handle knows.
func (r *cachedRun) mayBeCold(key runstore.RecordKey) bool {
	known := r.fingerprints.of == r.head.moveListID()
	return key != runstore.SummaryKey && !(known && !r.fingerprints.has(key))
}

// judgedHead returns the head as package rules judges a request for the lease, with the
// former grants.
func (r *cachedRun) judgedHead() rules.Head {
	h := r.head.rules(r.id, r.beat)
	h.Former = r.former
	return h
}

// exists reports whether there is such a run.
func (r *cachedRun) exists() bool { return r.stored != nil && !r.head.Purged }
