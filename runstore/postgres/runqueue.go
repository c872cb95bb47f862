package postgres

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// request is one write on its way: a statement that answers with one row.
type request struct {
	run   runstore.RunID
	nonce int64 // names this attempt in the database
	sent  localclock.Reading

	// result, if not nil, is the name under which the result is remembered
	// (rules.BatchResult and its like).
	resultKey []byte
	// order is the place in a round trip that several requests share: who gives
	// comes before who takes.
	order order

	// What is wanted is a heartbeat, with a fence and a ttl, or a write. A write has a fence
	// here if it is direct.
	fence runstore.Fence
	ttl   time.Duration
	write *write
	size  int
	// apart is whether the write was in a commitMerged that was not applied.
	sendAlone bool
	hints     hints

	// acquire, if not nil, is all that the write asks for. Of several on one run that
	// share a round trip one goes to the server; what it finds answers the others
	// too.
	acquire *runstore.AcquireRequest
	// releases is whether the write is a release and nothing else.
	releases bool

	ctx    context.Context
	queue  *runQueue // whose head it is part of while it is sent; else nil
	done   chan struct{}
	result writeResult
	err    error
}

type order int

const (
	orderExtend order = iota
	orderEnd
	orderAcquire
)

// heartbeat reports whether r renews a lease.
func (r *request) heartbeat() bool { return r.ttl > 0 }

// underWay notes that r has a connection, and may hold its run's row from now on.
func (r *request) gotConn() {
	if r.queue != nil {
		r.queue.sent.Store(true)
	}
}

// appends returns how many events r appends at most.
func (r *request) appends() int {
	if r.write == nil {
		return 0
	}
	return len(r.write.payloads)
}

func newNonce() int64 { return rand.Int64N(1<<63-1) + 1 }

// Bounds of what shares a round trip. A position has 14 bits for the events of one
// transaction.
const (
	maxGroup       = 128
	maxGroupEvents = 1 << 14
	maxGroupBytes  = 4 << 20
)

// lanes orders the writes of this handle by run: those that come while one of
// their run is under way wait, and then share one round trip. They would wait for
// the run's row anyway, each on a connection of its own.
type runQueues struct {
	mu        sync.Mutex
	all       map[runstore.RunID]*runQueue
	sendGroup func(ctx context.Context, group []*request) // sends a group and fills in its answers
}

type runQueue struct {
	waiting []*request
	// sent is whether the group at the head has a connection. While it waits for one, a
	// heartbeat goes past it: see bulkhead.
	sent atomic.Bool
}

// send sends r, alone or with its neighbours, and returns when its answer is
// there or its context has ended.
func (l *runQueues) send(r *request) error {
	l.mu.Lock()
	if q := l.all[r.run]; q != nil {
		if r.heartbeat() && !q.sent.Load() {
			l.mu.Unlock()
			l.sendGroup(r.ctx, []*request{r})
			return r.err
		}
		r.queue = q
		r.done = make(chan struct{})
		r.detach() // the caller may leave before it is sent
		q.waiting = append(q.waiting, r)
		l.mu.Unlock()
		return l.await(q, r)
	}
	q := &runQueue{}
	r.queue = q
	l.all[r.run] = q
	l.mu.Unlock()
	defer func() { // also when run panics: the lane must go on
		if group := l.nextGroup(r.run, q); group != nil {
			go l.drain(r.run, q, group)
		}
	}()
	l.sendGroup(r.ctx, []*request{r})
	r.queue = nil
	return r.err
}

// await waits for the answer to a request in a lane.
func (l *runQueues) await(q *runQueue, r *request) error {
	select {
	case <-r.done:
		r.queue = nil
		return r.err
	case <-r.ctx.Done():
	}
	l.mu.Lock()
	if i := slices.Index(q.waiting, r); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		l.mu.Unlock()
		return notSent{r.ctx.Err()}
	}
	l.mu.Unlock()
	select {
	case <-r.done: // both had happened
		return r.err
	default:
		return r.ctx.Err()
	}
}

// next takes the group that goes next, or closes the lane.
func (l *runQueues) nextGroup(id runstore.RunID, q *runQueue) []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, events, size := 0, 0, 0
	for _, r := range q.waiting {
		events += r.appends()
		size += r.size
		if n > 0 && (n == maxGroup || events > maxGroupEvents || size > maxGroupBytes) {
			break
		}
		n++
	}
	if n == 0 {
		delete(l.all, id)
		return nil
	}
	q.sent.Store(false)
	group := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	slices.SortStableFunc(group, func(a, b *request) int { return int(a.order - b.order) })
	return group
}

func (l *runQueues) drain(id runstore.RunID, q *runQueue, group []*request) {
	for ; group != nil; group = l.nextGroup(id, q) {
		ctx, stop := mergeContexts(group)
		l.sendGroup(ctx, group)
		stop()
		for _, r := range group {
			close(r.done)
		}
	}
}

// whileAnyLives returns a context that ends when those of all requests have: one
// caller's end is not its neighbours'.
func mergeContexts(group []*request) (context.Context, func()) {
	if len(group) == 1 {
		return group[0].ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(group[0].ctx))
	var left atomic.Int64
	left.Store(int64(len(group)))
	stops := make([]func() bool, len(group))
	for i, r := range group {
		stops[i] = context.AfterFunc(r.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// keep makes r independent of the slices that its caller gave.
func (r *request) detach() {
	if r.write != nil {
		if status := r.write.newStatus; status != nil {
			own := *status
			r.write.newStatus = &own
		}
		r.write.payloads, r.write.values = cloneAll(r.write.payloads), cloneAll(r.write.values)
	}
}

func cloneAll(all [][]byte) [][]byte {
	clones := make([][]byte, len(all))
	for i, b := range all {
		clones[i] = bytes.Clone(b)
	}
	return clones
}
