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

// request is one write in flight: a statement that returns one row.
type request struct {
	run   runstore.RunID
	nonce int64          // identifies this attempt in the database
	epoch runstore.Epoch // of the positions that the handle knew before this attempt
	sent  localclock.Reading

	// resultKey, if not nil, is the key under which the server stores the result
	// (rules.BatchResult, rules.GrantResult, rules.ReleaseResult).
	resultKey []byte
	// order is the position within a shared round trip: releases run before acquires.
	order order

	// A request is a heartbeat, with fence and ttl, or a write. A write sets fence only if it has a
	// dedicated statement (see direct).
	fence runstore.Fence
	ttl   time.Duration
	write *write
	size  int
	// byFunction is set when a commit statement did not apply the write. tapestore.write then performs it, or
	// explains why it is refused.
	byFunction bool
	timed      bool // see timedLeases

	// acquire is set if the write is an acquire without guards, writes or preemption. Of several
	// such requests for one run in a round trip, only the first is sent to the server; its result
	// answers the others too (resolveContenders).
	acquire *runstore.AcquireRequest
	// releases is set if the write is a release without guards or writes.
	releases bool

	ctx       context.Context
	connected *atomic.Bool // runQueue.connected of the group that r is sent in; nil for a request sent alone
	done      chan struct{}
	result    writeResult
	err       error
}

// order is the position of a request within a shared round trip, lowest first.
type order int

const (
	orderExtend order = iota
	orderEnd
	orderAcquire
)

// heartbeat reports whether r renews a lease.
func (r *request) heartbeat() bool { return r.ttl > 0 }

// setConnected records whether r has a connection, and so may hold the lock on its run's row.
func (r *request) setConnected(has bool) {
	if r.connected != nil {
		r.connected.Store(has)
	}
}

// appends returns the number of events that r appends if it is applied.
func (r *request) appends() int {
	if r.write == nil {
		return 0
	}
	return len(r.write.payloads)
}

// newNonce returns a random positive number that identifies one attempt of a write.
func newNonce() int64 { return rand.Int64N(1<<63-1) + 1 }

// Bounds of what shares a round trip: requests, events and bytes of data. A position has 14 bits
// for the events of one transaction (feed.go), hence 1<<14 events.
const (
	maxGroup       = 128
	maxGroupEvents = 1 << 14
	maxGroupBytes  = 4 << 20
)

// runQueues is a group commit per run: while a write of a run is in flight on this handle, further
// writes of that run wait in its runQueue and then share one round trip and one transaction.
// Without it each would wait for the row lock on a connection of its own.
type runQueues struct {
	mu        sync.Mutex
	all       map[runstore.RunID]*runQueue
	sendGroup func(ctx context.Context, group []*request) // sends a group and fills in its results
}

// runQueue is the queue of one run. It exists while a write of the run is in flight.
type runQueue struct {
	waiting []*request
	// connected is set once the group in flight has a connection. Until then a heartbeat does not queue
	// behind the group but is sent alone (see bulkhead). Every group has a new flag: a group whose callers
	// have left may get its connection while the next group still waits for one.
	connected *atomic.Bool
}

// send sends r, alone or in a group, and returns its error when the result has arrived or the
// request's context has ended.
func (l *runQueues) send(r *request) error {
	l.mu.Lock()
	if q := l.all[r.run]; q != nil {
		if r.heartbeat() && !q.connected.Load() {
			l.mu.Unlock()
			l.sendGroup(r.ctx, []*request{r})
			return r.err
		}
		r.done = make(chan struct{})
		r.detach() // the caller may leave before r is sent
		q.waiting = append(q.waiting, r)
		l.mu.Unlock()
		return l.await(q, r)
	}
	q := &runQueue{connected: new(atomic.Bool)}
	r.connected = q.connected
	l.all[r.run] = q
	l.mu.Unlock()
	defer func() { // also if sendGroup panics: queued requests must still be sent
		if group := l.nextGroup(r.run, q); group != nil {
			go l.drain(r.run, q, group)
		}
	}()
	l.sendGroup(r.ctx, []*request{r})
	r.connected = nil
	return r.err
}

// await waits for the result of a queued request. If the request's context ends first, await
// returns its error, as notSent if r was still queued.
func (l *runQueues) await(q *runQueue, r *request) error {
	select {
	case <-r.done:
		r.connected = nil
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
	case <-r.done: // the result arrived at the same moment
		return r.err
	default:
		return r.ctx.Err()
	}
}

// nextGroup removes the next group from the queue and returns it in the order of request.order. If
// nothing waits, it deletes the queue and returns nil.
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
	q.connected = new(atomic.Bool)
	group := slices.Clone(q.waiting[:n])
	for _, r := range group {
		r.connected = q.connected
	}
	q.waiting = slices.Delete(q.waiting, 0, n)
	slices.SortStableFunc(group, func(a, b *request) int { return int(a.order - b.order) })
	return group
}

// drain sends group and then every group that has queued up meanwhile.
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

// mergeContexts returns a context that ends when the contexts of all requests have ended, so that
// one caller's cancellation does not affect the others.
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

// detach copies the slices that r shares with its caller.
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
