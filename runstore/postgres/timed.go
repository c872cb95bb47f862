package postgres

import (
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// timedLeases remembers the leases for which the time of an append matters: those that are strict
// or have a bound on their progress. An append under such a lease locks the row before it reads the
// clock, see sql/lease_renew.sql. The statement for other leases leaves that out. It applies nothing
// under a timed lease; tapestore.write then performs the append. The handle remembers the lease from
// such a result, and from its own grants.
type timedLeases struct {
	mu     sync.Mutex
	fences map[runstore.RunID]runstore.Fence
}

// maxTimed bounds the memory of a handle: 65,536 runs are more than one handle drives. When there are
// as many, all are dropped.
const maxTimed = 1 << 16

// has reports whether r is an append under a lease that is known to be timed.
func (l *timedLeases) has(r *request) bool {
	if !r.direct() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.fences) > 0 && l.fences[r.run] == r.fence
}

// learn records what the result of a write shows about the current lease of its run.
func (l *timedLeases) learn(r *request) {
	holder := r.result.head.Holder
	if r.result.status != statusApplied || !holder.Strict && holder.MaxStall == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fences == nil || len(l.fences) >= maxTimed {
		l.fences = map[runstore.RunID]runstore.Fence{}
	}
	l.fences[r.run] = runstore.Lease{Run: r.run, Owner: holder.Owner, Token: holder.Token, Grant: r.result.head.Grant}.Fence()
}
