package postgres

import (
	"context"
	"slices"
	"sync"
	"time"
)

// appendCoalescer is a cross-run group commit: when maxInFlight round trips of appends are in
// flight, further appends wait for a slot, and those that wait then share one statement and one
// transaction. Committing a transaction is the most expensive part of an append, for the server and
// for its disk; appends that share a transaction pay for it once.
//
// It is not simple because the runs are independent, and a shared statement must not make one run
// wait for another's lock or share another's refusal. Its invariants:
//
//  1. A shared statement waits for no row lock. It skips runs whose row is locked, whose fence
//     does not hold, whose result exists already or whose guarded versions have changed.
//  2. A skipped group is sent again without the others. A single request is a call of tapestore.write; several
//     share a statement that may wait. So every group gets the result that it would get alone.
//  3. Waiting groups are sent as soon as one of the round trips in flight ends or exceeds
//     slotTimeout, as many as fit into one statement.
//  4. A caller that leaves early affects no other: groups hold copies of their requests, and a
//     shared statement is cancelled only when the contexts of all its groups have ended
//     (mergeContexts).
//
// Outline: submit takes a slot or queues the group; withSlot holds a slot for one round trip;
// releaseSlot passes the slot to the groups that nextGroups takes from the queue; send sends them
// by engine.appendMulti.
//
// BenchmarkAppend with 16 clients measures appends that share statements, against hand-written ones
// that do not.
type appendCoalescer struct {
	mu        sync.Mutex
	freeSlots int
	waiting   []*runGroup

	sendOne   func(ctx context.Context, group []*request)   // sends one run's group
	sendMulti func(ctx context.Context, groups []*runGroup) // sends several groups, and sets leftOut on those that it skipped
}

// maxInFlight is how many round trips of appends may be in flight before further appends wait and
// share one.
const maxInFlight = 2

// slotTimeout is how long a round trip may hold its slot: 20 ms. After that it gives up the slot
// and goes on without, so that a few rows locked by other transactions do not delay appends to all
// other runs.
const slotTimeout = 20 * time.Millisecond

// runGroup is a group of requests of one run that waits to be sent together with groups of other
// runs.
type runGroup struct {
	ctx     context.Context
	group   []*request // copies, because the callers of the originals may leave before the result arrives
	leftOut bool
	done    chan struct{}
}

// submit sends a group of one run. It returns when the requests have their results, or when ctx has
// ended.
func (c *appendCoalescer) submit(ctx context.Context, group []*request) {
	if !coalescable(group) {
		c.sendOne(ctx, group)
		return
	}
	c.mu.Lock()
	if c.freeSlots > 0 {
		c.freeSlots--
		c.mu.Unlock()
		c.withSlot(func() { c.sendOne(ctx, group) })
		return
	}
	g := &runGroup{ctx: ctx, done: make(chan struct{})}
	for _, r := range group {
		own := *r
		if r.done == nil { // otherwise detached already
			own.detach()
		}
		g.group = append(g.group, &own)
	}
	c.waiting = append(c.waiting, g)
	c.mu.Unlock()
	err := c.await(g)
	for i, r := range group {
		if r.err = err; err == nil {
			r.result, r.err, r.sent = g.group[i].result, g.group[i].err, g.group[i].sent
		}
	}
}

// coalescable reports whether a group can share a statement with groups of other runs: every
// request has a dedicated statement and the same fence, and a group of several requests contains
// mergeable ones only.
func coalescable(group []*request) bool {
	return !slices.ContainsFunc(group, func(r *request) bool {
		return !r.direct() || r.write.recordOnly() || r.fence != group[0].fence || len(group) > 1 && !r.mergeable()
	})
}

// await waits for the results of a queued group. If the group's context ends first, await returns
// its error, as notSent if the group was still waiting for a slot.
func (c *appendCoalescer) await(g *runGroup) error {
	select {
	case <-g.done:
		return nil
	case <-g.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, g); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		return notSent{g.ctx.Err()}
	}
	select {
	case <-g.done: // the result arrived at the same moment
		return nil
	default:
		return g.ctx.Err()
	}
}

// withSlot runs f, a round trip, in a slot that the caller has taken. It releases the slot when f
// returns or after slotTimeout, whichever comes first.
func (c *appendCoalescer) withSlot(f func()) {
	leave := sync.OnceFunc(c.releaseSlot)
	defer leave()
	defer time.AfterFunc(slotTimeout, leave).Stop()
	f()
}

// releaseSlot passes a slot to the groups that wait, or marks it free if none does.
func (c *appendCoalescer) releaseSlot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.nextGroups(); len(next) > 0 {
		go c.withSlot(func() { c.send(next) })
		return
	}
	c.freeSlots++
}

// nextGroups removes from the queue the groups that share the next statement, and returns them. It
// respects maxGroup, maxGroupEvents and maxGroupBytes. The caller holds c.mu.
func (c *appendCoalescer) nextGroups() []*runGroup {
	n, requests, events, size := 0, 0, 0, 0
	for _, g := range c.waiting {
		for _, r := range g.group {
			requests++
			events += r.appends()
			size += r.size
		}
		if n > 0 && (requests > maxGroup || events > maxGroupEvents || size > maxGroupBytes) {
			break
		}
		n++
	}
	next := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	return next
}

// send sends groups in one statement, and then each group that was left out by itself. A single
// group is sent alone.
func (c *appendCoalescer) send(groups []*runGroup) {
	if len(groups) == 1 { // it keeps the slot until its results arrive
		defer close(groups[0].done)
		c.sendOne(groups[0].ctx, groups[0].group)
		return
	}
	all := make([]*request, len(groups))
	for i, g := range groups {
		all[i] = &request{ctx: g.ctx}
	}
	ctx, stop := mergeContexts(all)
	c.sendMulti(ctx, groups)
	stop()
	for _, g := range groups {
		if !g.leftOut {
			close(g.done)
			continue
		}
		go func() {
			defer close(g.done)
			c.sendOne(g.ctx, g.group)
		}()
	}
}
