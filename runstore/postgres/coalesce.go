package postgres

import (
	"context"
	"slices"
	"sync"
	"time"
)

// crowd lets appends to several runs share a round trip when more of them come than
// there are places: those that find none wait until one is free, and then go
// together. The commit of a transaction is the dearest part of an append, for the
// server and for its disk, and a shared one is paid once.
//
// What shares a round trip waits for no row: a row that another transaction has
// locked is left out, and so is one whose fence does not hold. Those go alone
// after that.
type appendCoalescer struct {
	mu        sync.Mutex
	freeSlots int
	waiting   []*runGroup

	sendOne   func(ctx context.Context, group []*request)   // sends a group of one run
	sendMulti func(ctx context.Context, groups []*runGroup) // sends several groups, and marks those that it left out
}

// places is how many round trips of appends are under way before others share one.
const maxInFlight = 2

// slow is after how long a round trip gives up its place, so that a few rows which
// somebody holds do not keep the appends to all others waiting.
const slotTimeout = 20 * time.Millisecond

// party is a group of one run that goes with those of other runs.
type runGroup struct {
	ctx     context.Context
	group   []*request // copies: whoever sent the originals may leave before the answer
	leftOut bool
	done    chan struct{}
}

// run sends a group of one run, and returns when it has its answers, or its context
// has ended.
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
		if r.done == nil { // else it is independent of its caller already
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

// shareable reports whether a group may share a statement with those of other runs: there is
// one for each of its batches, and one for all of them.
func coalescable(group []*request) bool {
	return !slices.ContainsFunc(group, func(r *request) bool {
		return !r.direct() || r.write.recordOnly() || r.hints.evicts || r.fence != group[0].fence || len(group) > 1 && !r.mergeable()
	})
}

// await waits for the answer to a party. The error is that of a context that ended
// before.
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
	case <-g.done: // both had happened
		return nil
	default:
		return g.ctx.Err()
	}
}

// occupy does f, a round trip, in a place that was taken for it.
func (c *appendCoalescer) withSlot(f func()) {
	leave := sync.OnceFunc(c.releaseSlot)
	defer leave()
	defer time.AfterFunc(slotTimeout, leave).Stop()
	f()
}

// leave gives a place to those who wait.
func (c *appendCoalescer) releaseSlot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.nextGroups(); len(next) > 0 {
		go c.withSlot(func() { c.send(next) })
		return
	}
	c.freeSlots++
}

// next takes those who go next. The caller holds c.mu.
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

// send sends parties together, and then those that were left out.
func (c *appendCoalescer) send(groups []*runGroup) {
	if len(groups) == 1 { // the place is taken until it has its answer
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
