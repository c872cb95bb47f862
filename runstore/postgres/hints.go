package postgres

import (
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// hints are what a handle expects of an append. The statement for an append leaves out parts that
// few appends need, and a hint adds them. Hints are for speed only: without one, an append of a
// timed lease is performed by tapestore.write, and results are evicted later.
type hints struct {
	timed  bool // the lease is strict or has a bound on its progress, see sql/lease_renew.sql
	evicts bool // the run has results to evict
}

const (
	// evictEvery is the number of results of a run after which the oldest are evicted, as in
	// tapestore.write.
	evictEvery = 128
	// maxHints bounds the memory of a handle: 65,536 runs are more than one handle drives.
	maxHints = 1 << 16
)

// hintCache keeps the hints of a handle. A cache that is full is emptied.
type hintCache struct {
	mu    sync.Mutex
	timed map[runstore.RunID]runstore.Fence
	full  map[runstore.RunID]bool
}

// of returns the hints for a write. It returns each hint to evict once.
func (b *hintCache) of(r *request) (h hints) {
	if !r.direct() {
		return h
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.timed) > 0 {
		h.timed = b.timed[r.run] == r.fence
	}
	if r.storedKey() != nil && b.full[r.run] {
		h.evicts = true
		delete(b.full, r.run)
	}
	return h
}

// learn records what the result of a write shows about its run.
func (b *hintCache) learn(r *request) {
	holder := r.result.head.Holder
	timed := holder.Strict || holder.MaxStall > 0
	if !r.direct() {
		return
	}
	full := r.storedKey() != nil && r.result.resultCount > 0 && r.result.resultCount%evictEvery == 0
	if !timed && !full {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if timed {
		if b.timed == nil || len(b.timed) >= maxHints {
			b.timed = map[runstore.RunID]runstore.Fence{}
		}
		b.timed[r.run] = r.fence
	}
	if full {
		if b.full == nil || len(b.full) >= maxHints {
			b.full = map[runstore.RunID]bool{}
		}
		b.full[r.run] = true
	}
}
